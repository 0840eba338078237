"""The methods: local SGD, DiLoCo, streaming DiLoCo and SparseLoCo, around any inner optimizer.

Between rounds each island trains alone. An outer step takes the mean of the islands' differences,
anchor - parameters, for a gradient, and the anchor becomes what an optimizer makes of it; then all
islands go on from there. With learning rate a and momentum m (Nesterov's, as in torch.optim.SGD):

    momentum = m * momentum + mean;    anchor -= a * (mean + m * momentum)
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor

from harp.lightcc.outer.fragment import Fragment, local_of
from harp.lightcc.outer.island_exchange import (
    Exchange,
    begin_few_bits_mean,
    begin_mean,
    begin_sparse_mean,
    few_bits_mean_of_peers,
    mean_of_peers,
    sparse_mean_of_peers,
)
from harp.lightcc.outer.islands import Islands, check_alike
from harp.lightcc.outer.quantised_mean import check_exchange
from harp.lightcc.outer_policy import OuterPolicy, split
from harp.lightcc.torch_base.tensors import flat_bytes
from harp.module_names import plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from harp.lightcc.outer.elastic_peers import Peers
    from harp.lightcc.outer_policy import ExchangeAlgorithm


class Outer:
    """Base of all methods; users make one of the classes below.

    All ranks make it together, when parameters are on their device and divided (`fully_shard`), and
    call `step` or `after_step` as often as each other. When it is made, all islands take the
    parameters of the first one.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, policy: OuterPolicy,
                 islands: Islands | None, peers: Peers | None = None, *, lr: float,
                 momentum: float = 0.0, local_share: float = 0.0, decay: float = 1.0) -> None:
        self._check_place(policy, islands, peers)
        _check_range("lr", lr, 0, None)
        _check_range("momentum", momentum, 0, 1)
        _check_range("local_share", local_share, 0, 1)
        _check_range("decay", decay, 0, 1)
        self.policy, self.optimizer, self._model = policy, optimizer, model
        self.lr, self.momentum, self.local_share = lr, momentum, local_share
        self.steps = 0
        """Inner steps so far."""
        islands = islands or Islands()
        self._between, self.peers = islands.between, peers
        self._own_steps, self._is_meeting = 0, False
        named = _trained(model)
        if not named:
            raise ValueError("the model has no parameters that are trained")
        names = list(named)
        sizes = [local_of(one).numel() for one in named.values()]
        host = torch.device("cpu") if peers else None  # from where the state goes to others
        self._fragments = [Fragment({names[i]: named[names[i]] for i in range_}, islands.within,
                                    host) for range_ in split(sizes, policy.fragments)]
        self._momenta = [torch.zeros_like(one.anchor) if momentum else None
                         for one in self._fragments]
        self._errors = [torch.zeros_like(one.anchor) if policy.keeps_error else None
                        for one in self._fragments]
        self._decay = decay
        self._under_way: dict[int, Exchange] = {}
        self._start_alike()

    def _check_place(self, policy: OuterPolicy, islands: Islands | None,
                     peers: Peers | None) -> None:
        if peers is None and not dist.is_initialized():
            raise ValueError(f"{type(self).__name__} was made before init_process_group; make it "
                             "after")
        if peers is not None and islands is not None:
            raise ValueError("peers come and go as islands of one rank; give islands= or peers=")
        if peers is not None and policy.exchange == "ring":
            raise ValueError("peers that come and go have no ring; give exchange='direct'")
        if peers is None and policy.plan == "ring-few-bits":
            check_exchange(policy.exchange, islands.between if islands else None)
        if peers is not None and policy.delay:
            raise ValueError("peers come and go between rounds, with nothing under way; give "
                             "delay=0")

    def _start_alike(self) -> None:
        described = asdict(self.policy) | {
            "lr": self.lr, "momentum": self.momentum, "local_share": self.local_share,
            "decay": self._decay, "elements": sum(one.elements for one in self._fragments)}
        if self.peers is not None:
            self.peers.check_alike(described)
            self._start_with(self.peers)
            return
        check_alike(described, self._between)
        with torch.no_grad():
            first = dist.get_global_rank(self._between or dist.group.WORLD, 0)
            for fragment in self._fragments:
                fragment.anchor = fragment.flatten()
                dist.broadcast(fragment.anchor, first, group=self._between)
                fragment.write(fragment.anchor)

    def _start_with(self, peers: Peers) -> None:
        with torch.no_grad():
            for fragment in self._fragments:
                fragment.anchor = fragment.flatten()
            state = [one for one in (*(one.anchor for one in self._fragments), *self._momenta)
                     if one is not None]
            self._go_on_from(peers.start([flat_bytes(one) for one in state],
                                         lambda: self.steps - self._is_meeting))

    def _go_on_from(self, steps: int | None) -> None:
        """Take up the state that has been written to the anchors; None: it is this one's own."""
        if steps is None:
            return
        self.steps, self._own_steps = steps, 0
        for fragment, error in zip(self._fragments, self._errors, strict=True):
            fragment.write(fragment.anchor)
            if error is not None:
                error.zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the inner optimizer's step, and the outer one's where a round is over."""
        loss = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        self.after_step()
        return loss

    def after_step(self) -> None:
        """Do what follows an inner step that was made otherwise (`GradScaler.step`, a trainer)."""
        with torch.no_grad():
            self.steps += 1
            self._own_steps += 1
            if begins := self.policy.begins(self.steps):
                self._check_trained()
            for number in begins:
                self._begin(number)
            for number in self.policy.ends(self.steps):
                self._end(number, self.local_share)

    def _check_trained(self) -> None:
        """Refuse to leave parameters to each island alone. ValueError."""
        known = {name for one in self._fragments for name in one.parameters}
        if new := [name for name in _trained(self._model) if name not in known]:
            raise ValueError(f"parameter {new[0]} is trained, and was not when this "
                             f"{type(self).__name__} was made, so islands would part in it: make a "
                             "new one when parameters are unfrozen")

    def settle(self) -> None:
        """Wait for what is under way and mix it in now; all ranks call it."""
        with torch.no_grad():
            for number in sorted(self._under_way):
                self._end(number, self.local_share)

    def _begin(self, number: int) -> None:
        fragment, error = self._fragments[number], self._errors[number]
        difference = fragment.anchor - fragment.flatten()
        if error is not None and self.policy.sparse:
            error.mul_(self._decay).add_(difference)
        if self.peers is not None:
            exchange = self._exchange_with(self.peers, difference, error)
        elif error is None:
            exchange = begin_mean(difference, self._between)
        elif self.policy.sparse:
            exchange = begin_sparse_mean(error, self.policy, self._between)
        else:
            exchange = begin_few_bits_mean(difference, error, self.policy, self._between)
        self._under_way[number] = exchange

    def _exchange_with(self, peers: Peers, difference: torch.Tensor,
                       error: torch.Tensor | None) -> Exchange:
        share = min(self._own_steps, self.policy.every) / self.policy.every
        self._is_meeting = True
        try:
            if error is None:
                return mean_of_peers(difference, peers, share)
            if not self.policy.sparse:
                return few_bits_mean_of_peers(difference, error, self.policy, peers, share)
            return sparse_mean_of_peers(error, self.policy, peers, share)
        finally:
            self._is_meeting = False

    def _end(self, number: int, local_share: float) -> None:
        exchange = self._under_way.pop(number, None)
        if exchange is None:  # was settled already
            return
        mean = exchange.wait()
        if mean is None:
            assert self.peers
            self._go_on_from(self.peers.catch_up())
            return
        with self.peers.changing() if self.peers else contextlib.nullcontext():
            self._step_anchor(number, mean)
        fragment = self._fragments[number]
        fragment.write(fragment.anchor, local_share)

    def _step_anchor(self, number: int, mean: torch.Tensor) -> None:
        momentum = self._momenta[number]
        if momentum is not None:
            momentum.mul_(self.momentum).add_(mean)
            mean.add_(momentum, alpha=self.momentum)
        self._fragments[number].anchor.sub_(mean, alpha=self.lr)

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Give the state, the same at all ranks, by whole parameters; all ranks call it.

        Fragments under way are mixed in before. Of values not sent it has the mean over islands,
        which costs an average of the model between islands.
        """
        self.settle()
        with torch.no_grad():
            parts: dict[str, list[torch.Tensor | None]] = {
                "anchor": [one.anchor for one in self._fragments], "momentum": list(self._momenta),
                "error": [one if one is None or self.peers
                          else begin_mean(one.clone(), self._between).wait()
                          for one in self._errors]}
            state: dict[str, Any] = {"steps": self.steps}
            for what, vectors in parts.items():
                state[what] = {
                    name: whole
                    for fragment, part in zip(self._fragments, vectors, strict=True)
                    if part is not None for name, whole in _whole_tensors(fragment, part)}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back a state, in a job of any number of ranks and islands; all ranks call it.

        The model's own checkpoint has its parameters. ValueError where the state is of other ones,
        and then nothing is changed.
        """
        kept = [("anchor", [one.anchor for one in self._fragments]), ("momentum", self._momenta),
                ("error", self._errors)]
        self._check_state(state, kept)
        self._under_way.clear()
        changing = self.peers.changing() if self.peers else contextlib.nullcontext()
        with torch.no_grad(), changing:
            for what, vectors in kept:
                for fragment, vector in zip(self._fragments, vectors, strict=True):
                    if vector is not None and what == "error" and not state[what]:
                        vector.zero_()  # all was sent, in 32 bits
                    elif vector is not None:
                        vector.copy_(_own_part(fragment, state[what]))
        self.steps = state["steps"]

    def _check_state(self, state: Mapping[str, Any],
                     kept: Sequence[tuple[str, Sequence[torch.Tensor | None]]]) -> None:
        """Refuse a state of other parameters, or of a method that keeps less. ValueError."""
        if missing := [what for what in ("steps", *(what for what, _ in kept))
                       if what not in state]:
            raise ValueError(f"the checkpoint has no {missing[0]}: allowed is what state_dict() of "
                             "harp.lightcc.outer gives")
        for what, vectors in kept:
            for fragment, vector in zip(self._fragments, vectors, strict=True):
                if vector is not None and (what != "error" or state[what]):
                    _check_shapes(fragment, state[what], what)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {plain_name(model, name): one for name, one in model.named_parameters()
            if one.requires_grad}


def _whole_tensors(fragment: Fragment, part: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    made = []
    for (name, parameter), held in zip(fragment.parameters.items(), fragment.gather(part),
                                       strict=True):
        if isinstance(parameter, DTensor):
            whole = DTensor.from_local(held, parameter.device_mesh, parameter.placements,
                                       shape=parameter.shape, stride=parameter.stride())
            made.append((name, whole.full_tensor()))
        else:
            made.append((name, held.clone()))
    return made


def _check_shapes(fragment: Fragment, tensors: Mapping[str, torch.Tensor], what: str) -> None:
    for name, parameter in fragment.parameters.items():
        whole = tensors.get(name)
        if whole is None:
            raise ValueError(f"the checkpoint has no {what} of parameter {name}")
        if whole.shape != parameter.shape:
            raise ValueError(f"the checkpoint's {what} of parameter {name} has shape "
                             f"{tuple(whole.shape)}, the model's {tuple(parameter.shape)}")


def _own_part(fragment: Fragment, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    held = []
    for name, parameter in fragment.parameters.items():
        whole = tensors[name]
        if isinstance(parameter, DTensor):
            whole = local_of(distribute_tensor(whole.to(parameter.device), parameter.device_mesh,
                                               parameter.placements))
        held.append(whole.to(fragment.anchor.device))
    return fragment.flatten(held)


def _check_range(name: str, found: float, least: float, most: float | None) -> None:
    if found < least or (most is not None and found > most):
        allowed = f"{least} or more" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} is {found}; allowed is {allowed}")


class LocalSGD(Outer):
    """The mean of parameters after every ``every`` inner steps."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, every: int,
                 islands: Islands | None = None, *, peers: Peers | None = None) -> None:
        super().__init__(model, optimizer, OuterPolicy("local-sgd", every), islands, peers, lr=1.0)


class DiLoCo(Outer):
    """An outer step by Nesterov's momentum after every ``every`` inner steps.

    The defaults of ``lr`` and ``momentum`` are the paper's (arXiv 2311.08105, with AdamW inside).
    ``bits`` of 8, 4 or 2 send the difference in that width, as in INTELLECT-1 (8, arXiv
    2412.01152); rounding errors are added to the next round's, as in MuLoCo (2, arXiv 2505.23725).
    They are sent as ``exchange`` says: `harp.lightcc.outer_policy.faster_exchange` chooses.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, every: int,
                 islands: Islands | None = None, *, lr: float = 0.7, momentum: float = 0.9,
                 bits: int = 32, exchange: ExchangeAlgorithm = "direct",
                 peers: Peers | None = None) -> None:
        policy = OuterPolicy("diloco", every, bits=bits, exchange=exchange)
        super().__init__(model, optimizer, policy, islands, peers, lr=lr, momentum=momentum)


class StreamingDiLoCo(Outer):
    """DiLoCo by fragments of layers, each under way for ``delay`` inner steps.

    When a fragment is mixed in, ``local_share`` of each parameter stays what the island made of it
    meanwhile; if not given, the paper's 0.5 (arXiv 2501.18512) with a delay, and 0 without one.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, every: int,
                 islands: Islands | None = None, *, fragments: int = 4, delay: int = 1,
                 lr: float = 0.7, momentum: float = 0.9, local_share: float | None = None,
                 bits: int = 32, exchange: ExchangeAlgorithm = "direct",
                 peers: Peers | None = None) -> None:
        if local_share is None:
            local_share = 0.5 if delay else 0.0
        super().__init__(model, optimizer,
                         OuterPolicy("streaming", every, fragments, delay, bits=bits,
                                     exchange=exchange), islands, peers, lr=lr,
                         momentum=momentum, local_share=local_share)


class SparseLoCo(Outer):
    """The largest values of the difference, in few bits; the rest is kept for the next round.

    The kept error fades by ``decay`` a round, and stands in for outer momentum. An element's mean
    is over the islands that sent it. Defaults are the paper's (arXiv 2508.15706).
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, every: int,
                 islands: Islands | None = None, *, keep: int = 64, chunk: int = 4096,
                 bits: int = 2, lr: float = 1.0, decay: float = 0.95, fragments: int = 1,
                 delay: int = 0, local_share: float = 0.0, peers: Peers | None = None) -> None:
        policy = OuterPolicy("sparseloco", every, fragments, delay, keep, chunk, bits)
        super().__init__(model, optimizer, policy, islands, peers, lr=lr,
                         local_share=local_share, decay=decay)
