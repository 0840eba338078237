"""The engine: a model whose states live in pages, with DeepSpeed's calls.

    engine, optimizer, _, _ = harp.angelptm.initialize(model=model, config="ds_config.json")
    for batch, target in data:
        loss = loss_of(engine(batch), target)
        engine.backward(loss)
        engine.step()

A parameter keeps its object and its address, in the window; its memory comes and goes. Operators
are watched (torch.utils._python_dispatch), so whatever reads a parameter finds it there, be it a
module, a function with tied weights, or a backward pass.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harp._cnet import ffi
from harp.angelptm import checkpoint
from harp.angelptm.accelerator import DeviceCache, Wholes, bring, find_device, room_bytes
from harp.angelptm.adam import Adam, update_part
from harp.angelptm.cache import Cache
from harp.angelptm.checkpoint import CheckpointError
from harp.angelptm.config import Config, ConfigError, read_config
from harp.angelptm.late import Waiting
from harp.angelptm.paged import guard_outputs, put_in_class, take_out_of_class
from harp.angelptm.pages import WIDE, Layout, whole_page
from harp.angelptm.plan import RESERVE, TIERS, Capacities, CapacityError, Sharing
from harp.angelptm.ranks import RankError, Ranks, find_ranks
from harp.angelptm.reduction import Reduction
from harp.angelptm.scaler import Scaler
from harp.angelptm.steps import Steps
from harp.angelptm.window import Window

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

Numbers = frozenset[int]
"""Of pages or parameters."""
NOTHING: Numbers = frozenset()
OWN = -1


class Watch(TorchDispatchMode):
    """Has the pages of an operator's arguments on the device before it runs."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine, self.depth = engine, 0

    def __enter__(self) -> Watch:
        """Begin to watch."""
        self.depth += 1
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """End it."""
        self.depth -= 1
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        del types
        written = self._engine.written(func, args) if func._schema.is_mutable else NOTHING
        self._engine.touch(args, kwargs, is_view=func.is_view)
        result = func(*args, **(kwargs or {}))
        if written:
            self._engine.put_back(written)
        return result


class Optimizer(torch.optim.Optimizer):
    """The optimizer as schedulers and scripts see it: its groups. Its step is the engine's."""

    def __init__(self, groups: Any, adam: Adam, engine: Engine) -> None:
        super().__init__(groups, {
            "lr": adam.rate, "betas": adam.betas, "eps": adam.epsilon,
            "weight_decay": adam.decay, "decoupled": adam.decoupled})
        self._engine = engine

    def step(self, closure: Any = None) -> None:
        """Step as the engine does."""
        assert closure is None, "AngelPTM's optimizer takes no closure"
        self._engine.step()

    def stepped(self) -> None:
        """Let schedulers know that there was a step: they warn else."""
        self._opt_called = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: gradients end with their step."""


@dataclass
class Gradients:
    """Gradients of a step, and what their updates need."""

    arrived: set[int] = field(default_factory=set)
    """Parameters that have one."""
    updated: set[tuple[int, int]] = field(default_factory=set)
    """Parts of these that have been updated: parameter and chunk."""
    how: list[Adam] = field(default_factory=list)
    """By group."""
    group_of: dict[int, int] = field(default_factory=dict)
    scale: float = 1.0
    skip: bool = False


class Engine(torch.nn.Module):
    """A model in pages. Made by `initialize`."""

    def __init__(self, model: torch.nn.Module, config: Config, groups: Any, adam: Adam,
                 ranks: Ranks | None = None) -> None:
        super().__init__()
        self.module = model
        self.config = config
        self.dtype = getattr(torch, config.precision)
        self.parameters_in_pages = _trained(groups)
        self._ranks = ranks
        many, own = (ranks.ranks, ranks.rank) if ranks else (1, 0)
        self.layout = Layout(tuple(one.numel() for one in self.parameters_in_pages),
                             self.dtype.itemsize, whole_page(config.page_bytes, many), many, own)
        self._number = {id(one): number for number, one in enumerate(self.parameters_in_pages)}
        self.device = find_device(config.device, many)
        with self._alike():
            self._make_cache(model)
        at_end = bool(config.clipping or config.scaling)
        self._at_end = at_end
        self._late = Waiting(self.layout, config.staleness) if config.update == "async" else None
        if ranks:
            self._reduction = Reduction(self.cache, ranks, self.dtype, each=config.stage > 1,
                                        norms=at_end)
        self.optimizer = Optimizer(groups, adam, self)
        self._steps = Steps(
            self.cache, self._update_chunk, at_end=at_end,
            late=self._late.most if self._late else 0,
            reduction=self._reduction if ranks else None, agree=ranks.slowest if ranks else list)
        self._watch = Watch(self)
        self._pages: list[Numbers] = []
        """Of each parameter."""
        self._keys: dict[int, Numbers] = {}
        """The parameter that has a memory."""
        self._chunk_parameters: dict[int, list[int]] = defaultdict(list)
        for number in range(len(self.parameters_in_pages)):
            for chunk in self.layout.chunks_of(number):
                self._chunk_parameters[chunk].append(number)
        self._here: set[int] = set()
        """Parameters whose gradient has come in this micro-batch."""
        self._new = self._old = Gradients()
        """Of this step, and of the last one, which has the settings of late updates."""
        self.staleness = 0
        """Most steps that parameters were behind when an operator used them."""
        self._outside = False
        self._micro_steps = 0
        self.global_steps = 0
        self.skipped_steps = 0
        self._square = 0.0
        self._norm: float | None = None
        self._norms: list[torch.Tensor] = []
        """Of the gradients of this step, for its square."""
        self._counts = [0] * len(self.parameters_in_pages)
        """Updates of each parameter: torch corrects the bias of each by its own."""
        self._persistent = set(model.state_dict())
        self._scaler = Scaler(config.scaling) if config.scaling else None
        for number, parameter in enumerate(self.parameters_in_pages):
            self._put_in_pages(number, parameter)
        self._steps.rates = self.cache.measure()
        if ranks:
            self._steps.rates = replace(self._steps.rates, network=self._reduction.measure())
        for tensor in [*model.buffers(), *_frozen(model, self._number)]:
            self._put_beside_pages(tensor)

    def _make_cache(self, model: torch.nn.Module) -> None:
        layout, config, many = self.layout, self.config, self.layout.ranks
        room = 0
        if self.device.type != "cpu":
            room = room_bytes(model, self._number, layout)
        if config.device_bytes is not None:
            config = replace(config, device_bytes=max(config.device_bytes - room, 0))
        later = stays(layout, config)
        sharing = Sharing(layout.shown, many, config.stage == 3) if many > 1 else None
        given = (layout, capacities(layout, config, later), config.disk_path, config.io, sharing,
                 later, self._gather)
        self.cache: Cache
        self.window: Window | Wholes
        if self.device.type == "cpu":
            self.cache = Cache(*given)
            self.window = Window(self.cache, self.dtype)
        else:
            self.cache = cache = DeviceCache(self.device, *given)
            self.window = Wholes(cache, self.dtype)

    def _put_beside_pages(self, tensor: torch.Tensor) -> None:
        if self._ranks:
            self._ranks.broadcast(tensor.data)
        dtype = self.dtype if tensor.is_floating_point() else tensor.dtype
        bring(tensor, tensor.data.to(self.device, dtype))

    # The parts that operators see

    def _put_in_pages(self, number: int, parameter: torch.nn.Parameter) -> None:
        first = parameter.data.detach().contiguous()
        pages = frozenset(self.layout.pages_of(number))
        if len(pages) > (room := self.cache.capacities.device):
            raise CapacityError(f"the device has room for {room} pages, and the parameter "
                                f"{self._names()[number]} alone needs {len(pages)}")
        whole = self.window.make(parameter.shape)
        if self._ranks:
            self._ranks.broadcast(first)
        self._write_own(number, first.cpu().view(-1))
        bring(parameter, whole)
        self._pages.append(pages)
        self._keys[self.window.key(parameter.data)] = frozenset((number,))
        parameter.register_post_accumulate_grad_hook(self._put_gradient_away)
        put_in_class(parameter, self)

    def _write_own(self, number: int, values: torch.Tensor) -> None:
        """Write this rank's elements of a parameter, given all."""
        self._write(number, 0, values.float())
        if self.layout.element_bytes != WIDE:
            self._write(number, OWN, values.to(self.dtype))

    def _write(self, number: int, kind: int, values: torch.Tensor) -> None:
        data = values.view(torch.uint8).numpy()
        for at, piece in self._pieces(number, kind):
            ffi.memmove(piece, ffi.from_buffer(data[at:at + len(piece)]), len(piece))

    def _pieces(self, number: int, kind: int) -> Iterator[tuple[int, memoryview]]:
        """Give the bytes of a parameter's masters, means or squares (0, 1, 2), page by page.

        The first number of each is where it begins in the whole parameter, in bytes. `OWN` stands
        for parameters in the precision of training.
        """
        layout = self.layout
        for begin, end, chunk, first in layout.ranges(number):
            width, at = WIDE, WIDE * (begin - chunk * layout.chunk)
            pages = layout.states_of(chunk)
            if len(pages) == 2:
                pages.insert(0, layout.page_of_chunk(chunk))
            page = pages[kind]
            if kind == OWN:
                width, page = layout.element_bytes, layout.page_of_chunk(chunk)
                at = width * begin % layout.page_bytes
            with self._steps.opened(page) as address:
                yield width * first, memoryview(ffi.buffer(ffi.cast("uint8_t *", address + at),
                                                           width * (end - begin)))

    def touch(self, args: Iterable[Any], kwargs: Mapping[str, Any] | None = None, *,
              is_view: bool = False) -> None:
        """Have parameters among the arguments on the device, or what a view of them takes."""
        numbers = self._parameters_in(args)
        if kwargs:
            numbers |= self._parameters_in(kwargs.values())
        if numbers and is_view:
            self.window.lend(numbers)
        elif numbers:
            self._use(NOTHING.union(*(self._pages[number] for number in numbers)))
            self.window.have(numbers)

    def put_back(self, numbers: Numbers) -> None:
        """Write parameters that an operator has changed to their pages."""
        self.window.put_back(numbers)

    def _parameters_in(self, values: Iterable[Any]) -> Numbers:
        numbers = NOTHING
        for value in values:
            if isinstance(value, torch.Tensor):
                numbers |= self._keys.get(self.window.key(value), NOTHING)
            elif isinstance(value, list | tuple):
                numbers |= self._parameters_in(value)
        return numbers

    def written(self, func: Any, args: Iterable[Any]) -> Numbers:
        """Give parameters that an operator writes. RankError if they are sharded over the ranks."""
        numbers = self._parameters_in(
            arg for arg, how in zip(args, func._schema.arguments, strict=False)
            if how.alias_info is not None and how.alias_info.is_write)
        if self._ranks and self._outside and numbers:
            raise RankError("a parameter cannot be written with several ranks, each of which keeps "
                            "a part of it: write it before initialize, or load a checkpoint")
        return numbers

    def _use(self, pages: Numbers) -> None:
        of_step = self._steps.in_step or (self.training and torch.is_grad_enabled())
        if of_step and not self._outside:
            self._steps.touch(pages)
            if self._late:
                self.staleness = max(self.staleness, self._late.age(pages, self.global_steps))
                assert self.staleness <= self._late.most
        else:
            self._steps.look(pages)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let other code than the engine's calls read or write parameters."""
        self._outside = True
        try:
            with self._watch:
                yield
        finally:
            self._outside = False

    @property
    def is_watching(self) -> bool:
        """Whether the engine has parameters ready for what is run now."""
        return self._watch.depth > 0

    # DeepSpeed's calls

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        with self._telling(), self._watch:
            outputs = self.module(*args, **kwargs)
        guard_outputs(outputs, lambda: self.is_watching)
        return outputs

    def backward(self, loss: torch.Tensor) -> torch.Tensor:
        """Run the backward pass of a micro-batch; the mean of micro-batches counts."""
        if not self._new.how:
            self._begin_step()
        scale = self._scaler.scale if self._scaler else 1.0
        self._here.clear()
        with self._telling():
            self._steps.begin_batch(last=self.is_gradient_accumulation_boundary())
            with self._watch:
                (loss * (scale / self.config.accumulation)).backward()
            self._steps.end_batch()
        self._micro_steps += 1
        return loss

    @property
    def global_rank(self) -> int:
        """The number of this rank."""
        return self.layout.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.layout.ranks

    @property
    def local_rank(self) -> int:
        """The number of this rank on its host, as the launcher says."""
        return int(os.environ.get("LOCAL_RANK", self.global_rank))

    def get_lr(self) -> list[float]:
        """Give the rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float | None:
        """Give the norm of the last step's gradients, before clipping.

        None before the first step, and without clipping and loss scaling, where nobody needs it.
        """
        return self._norm

    def gradient_accumulation_steps(self) -> int:
        """Give the micro-batches of a step."""
        return self.config.accumulation

    def zero_optimization_stage(self) -> int:
        """Give the stage, 0 to 3."""
        return self.config.stage

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether this micro-batch is the last of its step."""
        return (self._micro_steps + 1) % self.config.accumulation == 0

    def step(self) -> None:
        """Update, when the last micro-batch of a step is through; else do nothing."""
        if self._micro_steps % self.config.accumulation or not self._new.how:
            return
        with self._telling():
            self._end_step()
        self.optimizer.stepped()

    def _end_step(self) -> None:
        if self._ranks:
            self._meet(self._ranks)
        skip = self._settle_scale()
        new = self._new
        chunks = sorted({chunk for number in new.arrived
                         for chunk in self.layout.chunks_of(number)})
        new.skip = skip
        due = chunks
        if self._late:
            chunks, due = self._owe(self._late, chunks)
        self._steps.end(chunks, due)
        if not skip and not self._late:
            self._update_rest(chunks)
            self._count()
        if self._ranks and not self._at_end:
            self._reduction.end(self._late.chunks() if self._late else ())
        self._new = Gradients()
        self.skipped_steps += skip
        self.global_steps += 1

    def _owe(self, late: Waiting, chunks: Iterable[int]) -> tuple[list[int], list[int]]:
        """Have this step's updates over, and leave its gradients to steps that come.

        Returns the chunks whose gradients wait, and those that the next step updates.
        """
        self._steps.complete()
        self._old = self._new
        if not self._new.skip:
            late.add(self._new.arrived, self.global_steps)
            self._count()
        owed = sorted({*chunks, *late.chunks()})
        return owed, late.due(owed, self.global_steps + 1)

    def _count(self) -> None:
        for number in self._new.arrived:
            self._counts[number] += 1

    def _meet(self, ranks: Ranks) -> None:
        """Compare the step with that of other ranks, and have the norm of all gradients."""
        if self._at_end:
            self._steps.settle()
        own_square = self._reduction.end() if self._at_end else 0.0
        rows = ranks.gather_numbers([own_square, self._steps.sum])
        ranks.check_steps([steps for _, steps in rows])
        square = math.fsum(own for own, _ in rows)
        # Where pages are cut changes the last bits of a float64, and so not those of a float32.
        norm = torch.tensor(math.sqrt(square) if math.isfinite(square) else math.inf)
        self._square = float(norm) ** 2

    def save_checkpoint(self, save_dir: str | Path, tag: str | None = None,
                        client_state: Mapping[str, Any] | None = None) -> bool:
        """Save all between two steps, and what the script adds, which JSON can hold."""
        kept = {"global_steps": self.global_steps, "skipped_steps": self.skipped_steps,
                "counts": dict(zip(self._names(), self._counts, strict=True)),
                "scaler": self._scaler.state() if self._scaler else None,
                "groups": [{name: value for name, value in group.items() if name != "params"}
                           for group in self.optimizer.param_groups],
                "client_state": dict(client_state or {})}

        folder, tag = Path(save_dir), tag or f"global_step{self.global_steps}"
        fresh = checkpoint.fresh_folder(folder, tag)
        files = {"model.safetensors": self._model_tensors(),
                 "optimizer.safetensors": [self._tensor(f"{name}.{kind}", number, place)
                                           for number, name in enumerate(self._names())
                                           for place, kind in ((1, "mean"), (2, "square"))]}
        with self._alike():
            if self._is_first:
                checkpoint.begin(folder, tag)
                for name, tensors in files.items():
                    checkpoint.write_header(fresh / name, tensors)
        with self._alike():
            for name, tensors in files.items():
                checkpoint.write_tensors(fresh / name, tensors)
        with self._alike():
            if self._is_first:
                checkpoint.write_text(fresh / "state.json", json.dumps(kept))
                checkpoint.publish(folder, tag)
        return True

    @property
    def _is_first(self) -> bool:
        return self._ranks is None or self._ranks.rank == 0

    def _alike(self) -> AbstractContextManager[None]:
        """Raise at all ranks what one raises."""
        return self._ranks.alike() if self._ranks else nullcontext()

    def _telling(self) -> AbstractContextManager[None]:
        """Let the other ranks know of an error of this one."""
        return self._ranks.telling() if self._ranks else nullcontext()

    def load_checkpoint(self, load_dir: str | Path, tag: str | None = None,
                        ) -> tuple[str, dict[str, Any]]:
        """Load what was saved, whatever the caps were; returns its folder and what was added.

        Raises CheckpointError, and then nothing was changed.
        """
        with self._alike():
            folder = checkpoint.find(Path(load_dir), tag)
            model, states, kept = self._read(folder)
        with self._alike():
            self._load(model, states)
        self._load_rest(model, kept)
        return str(folder), kept["client_state"]

    def _read(self, folder: Path) -> tuple[Any, Any, Any]:
        """Give the tensors of a checkpoint, which are those of this model."""
        model, states = (checkpoint.read_tensors(folder / f"{name}.safetensors")
                         for name in ("model", "optimizer"))
        names = self._names()
        kept = checkpoint.read_state(folder / "state.json", names, len(self.optimizer.param_groups))
        wide = [WIDE * size for size in self.layout.sizes]
        wanted = [(model, name, size) for name, size in zip(names, wide, strict=True)]
        wanted += [(states, f"{name}.{kind}", size) for name, size in zip(names, wide, strict=True)
                   for kind in ("mean", "square")]
        wanted += [(model, name, one.nbytes) for name, one in self._unpaged().items()]
        for tensors, name, size in wanted:
            if len(tensors.get(name, b"")) != size:
                raise CheckpointError(f"{folder}: tensor {name} is missing or of another size")
        return model, states, kept

    def _load(self, model: Mapping[str, memoryview], states: Mapping[str, memoryview]) -> None:
        narrow = self.layout.element_bytes != WIDE
        for number, name in enumerate(self._names()):
            for kind, data in enumerate((model[name], states[f"{name}.mean"],
                                         states[f"{name}.square"])):
                for at, piece in self._pieces(number, kind):
                    piece[:] = data[at:at + len(piece)]
            for at, piece in self._pieces(number, OWN) if narrow else ():
                part = model[name][2 * at:2 * (at + len(piece))]  # a float32 for each two bytes
                own = torch.frombuffer(bytearray(part), dtype=torch.float32).to(self.dtype)
                ffi.memmove(piece, ffi.from_buffer(own.view(torch.uint8).numpy()), len(piece))
        if self._ranks:
            self._steps.forget(range(self.layout.apart))

    def _load_rest(self, model: Mapping[str, memoryview], kept: Mapping[str, Any]) -> None:
        for name, tensor in self._unpaged().items():
            tensor.copy_(torch.frombuffer(bytearray(model[name]), dtype=tensor.dtype).view(
                tensor.shape))
        self.global_steps, self.skipped_steps = kept["global_steps"], kept["skipped_steps"]
        self._counts = [kept["counts"][name] for name in self._names()]
        if self._scaler and kept["scaler"]:
            self._scaler.restore(kept["scaler"])
        for group, own in zip(self.optimizer.param_groups, kept["groups"], strict=True):
            group.update(own)

    def _names(self) -> list[str]:
        """The first name of each parameter in pages."""
        names = {id(one): name for name, one in self.module.named_parameters()}
        return [names[id(one)] for one in self.parameters_in_pages]

    def _unpaged(self) -> dict[str, torch.Tensor]:
        """Tensors of the model that are not in pages: buffers, and what is not trained."""
        own = {name: one.data for name, one in self.module.named_parameters()
               if id(one) not in self._number}
        return own | {name: one for name, one in self.module.named_buffers()
                      if one.numel() and name in self._persistent}

    def _model_tensors(self) -> list[Any]:
        """All of the state_dict; tied weights by each of their names."""
        tensors = [self._tensor(name, self._number[id(one)], 0)
                   for name, one in self.module.named_parameters(remove_duplicate=False)
                   if id(one) in self._number]
        for name, one in self._unpaged().items():
            own = one.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            tensors.append((name, str(one.dtype).removeprefix("torch."), list(one.shape), len(own),
                            lambda own=own: [(0, own)] if self._is_first else []))
        return tensors

    def _tensor(self, name: str, number: int, kind: int) -> Any:
        shape = list(self.parameters_in_pages[number].shape)
        return (name, "float32", shape, WIDE * self.layout.sizes[number],
                lambda: self._pieces(number, kind))

    def describe(self) -> str:
        """Say how many pages each tier holds, and their size."""
        counts = [sum(tier == own for own, _ in self.cache.where) for tier in range(3)]
        parts = [f"{count} of the {name}" for name, count in zip(TIERS, counts, strict=True)
                 if count]
        return f"pages of {self.layout.page_bytes >> 10} KiB: {', '.join(parts)}"

    def destroy(self) -> None:
        """Give all memory back. The model cannot be used any more."""
        self._steps.close()
        for parameter in self.parameters_in_pages:
            take_out_of_class(parameter)
            parameter.data = torch.empty(0, dtype=self.dtype, device=self.device)
        self.cache.close()
        if self._ranks:
            self._ranks.close()

    def _update_rest(self, chunks: Iterable[int]) -> None:
        """Update what a planned job came too early for: a parameter that is new in this step."""
        for chunk in chunks:
            late = [number for number in self._chunk_parameters[chunk]
                    if number in self._new.arrived and (number, chunk) not in self._new.updated]
            if late:
                self._steps.update_now([chunk])

    def _gather(self, page: int, address: int) -> None:
        self._reduction.gather(page, address)

    def _begin_step(self) -> None:
        self._square, new = 0.0, self._new
        self._norms.clear()
        groups = self.optimizer.param_groups
        new.how = [Adam(group["lr"], group["betas"], group["eps"], group["weight_decay"],
                        group["decoupled"]) for group in groups]
        new.group_of = {self._number[id(one)]: number for number, group in enumerate(groups)
                        for one in group["params"] if id(one) in self._number}

    def _settle_scale(self) -> bool:
        """Clip and unscale gradients; returns whether the step is skipped, for overflow."""
        scale = 1 / self._scaler.scale if self._scaler else 1.0
        for norm in torch.stack(self._norms).tolist() if self._norms else ():
            self._square += norm ** 2
        norm = math.sqrt(self._square) * scale if math.isfinite(self._square) else math.inf
        self._norm = norm if self._at_end else None
        if self._scaler and self._scaler.hear(overflow=not math.isfinite(self._square)):
            return True
        if self.config.clipping and norm > self.config.clipping:
            scale *= self.config.clipping / (norm + 1e-6)
        self._new.scale = scale
        return False

    # Gradients and updates

    def _put_gradient_away(self, parameter: torch.Tensor) -> None:
        number = self._number[id(parameter)]
        self._use(frozenset(self.layout.pages_of(number, gradient=True)))
        assert parameter.grad is not None
        others = self._here if self._ranks and self._reduction.each else self._new.arrived
        sums: Container[int] = ()
        if number in others:
            sums = self.layout.pages_of(number)
        elif self._late and not self._ranks:
            sums = self._late.pages_of(number)
        self.window.keep_gradient(number, parameter.grad, sums)
        parameter.grad = None
        self._new.arrived.add(number)
        self._here.add(number)
        self._steps.wrote(number)
        if self._at_end and not self._ranks and self.is_gradient_accumulation_boundary():
            self._norms.append(self.window.norm(number))

    def _update_chunk(self, chunk: int) -> None:
        """Update the parameters of a chunk that have a gradient: any thread."""
        runs = list(self._late_runs(self._late, chunk) if self._late else self._runs(chunk))
        if not runs:
            return
        layout, first = self.layout, chunk * self.layout.chunk
        pages = layout.pages_to_update(chunk)
        in_page = (first * layout.element_bytes) % layout.page_bytes
        narrow, width = layout.element_bytes != WIDE, layout.element_bytes
        with self.cache.opened(pages, (pages[0], *pages[2:]), anywhere=True) as memory:
            shown, gradients, *states = memory
            ordered = [*states, gradients, shown] if narrow else [shown, *states, gradients]
            for begin, end, how in runs:
                own = in_page + width * (begin - first)
                begins = [WIDE * (begin - first)] * len(states) + [own] * 2
                if not narrow:
                    begins = [own, *begins[:-1]]
                update_part(ordered, begins, end - begin, self.config.precision, how)

    def _runs(self, chunk: int) -> Iterator[tuple[int, int, Any]]:
        """Give the ranges of a chunk that have gradients, with Adam's constants of each."""
        new = self._new
        for number in () if new.skip else self._chunk_parameters[chunk]:
            if number in new.arrived and (number, chunk) not in new.updated:
                new.updated.add((number, chunk))
                how = new.how[new.group_of[number]].at(self._counts[number] + 1, new.scale)
                yield from self._ranges(number, chunk, how)

    def _late_runs(self, late: Waiting, chunk: int) -> Iterator[tuple[int, int, Any]]:
        """Give those whose gradients wait: as many steps as gradients, each by their mean."""
        old = self._old
        for number, gradients in late.take(chunk).items():
            how, last = old.how[old.group_of[number]], self._counts[number]
            for step in range(last - gradients + 1, last + 1):
                yield from self._ranges(number, chunk, how.at(step, old.scale / gradients))
        if self._ranks:
            self._reduction.updated(chunk)

    def _ranges(self, number: int, chunk: int, how: Any) -> Iterator[tuple[int, int, Any]]:
        for begin, end, where, _ in self.layout.ranges(number):
            if where == chunk:
                yield begin, end, how


def _trained(groups: Any) -> list[torch.nn.Parameter]:
    found = {id(one): one for group in groups for one in group["params"] if one.requires_grad}
    return list(found.values())


def _frozen(model: torch.nn.Module, trained: Mapping[int, int]) -> list[torch.nn.Parameter]:
    return [one for one in model.parameters() if id(one) not in trained]


def stays(layout: Layout, config: Config) -> int:
    """Give how many pages of the window stay while others are used, beside the own ones."""
    if layout.ranks == 1 or config.stage == 3:
        return 0
    return layout.shown * (2 if config.stage < 2 and config.accumulation > 1 else 1)


def capacities(layout: Layout, config: Config, later: int = 0) -> Capacities:
    """Give the pages that each tier holds; without a cap a tier holds all that is left."""
    def pages(limit: int | None, left: int) -> int:
        return left if limit is None else limit // layout.page_bytes

    device = pages(config.device_bytes, layout.pages)
    left = max(layout.pages - device, 0)
    if layout.ranks > 1 and left:
        left = layout.pages - layout.apart + later  # the window's pages may fill the device
    host = pages(config.host_bytes, left + 2 * RESERVE if left else 0)
    if config.disk_path is None:
        return Capacities(device, host)
    disk = pages(config.disk_bytes or None, layout.pages + RESERVE)
    return Capacities(device, host, disk if left > host - 2 else 0)


def initialize(model: torch.nn.Module, config: Mapping[str, Any] | str | Path | None = None,
               model_parameters: Any = None, optimizer: Any = None, args: Any = None,
               config_params: Any = None, lr_scheduler: Any = None, **more: Any,
               ) -> tuple[Engine, Optimizer, None, Any]:
    """Put a model into pages, as deepspeed.initialize does; returns engine and optimizer.

    Raises ConfigError for a wrong configuration, CapacityError for tiers that are too small, and
    RankError where ranks disagree.
    """
    if wrong := sorted(name for name, value in more.items() if value is not None):
        raise ConfigError(f"initialize: {', '.join(wrong)} has no effect here: leave it out")
    given = config or config_params or getattr(args, "deepspeed_config", None)
    if given is None:
        raise ConfigError("initialize needs config=, an object or the path of a JSON file")
    ranks = find_ranks()
    with ranks.alike() if ranks else nullcontext():
        read = read_config(given, ranks.ranks if ranks else 1)
        adam = read.adam
        if optimizer is not None:
            groups, adam = _groups_of(optimizer)
        else:
            groups = _as_groups(model_parameters if model_parameters is not None
                                else model.parameters())
        if adam is None:
            raise ConfigError("the configuration has no optimizer, and none was given: "
                              "optimizer.type Adam or AdamW is possible")
        _refuse_meta(model)
        refuse_experts(model, ranks.ranks if ranks else 1)
    if ranks:
        ranks.check_same(_to_agree_on(model, read, adam, groups))
    engine = Engine(model, read, groups, adam, ranks)
    if callable(lr_scheduler):
        lr_scheduler = lr_scheduler(engine.optimizer)
    return engine, engine.optimizer, None, lr_scheduler


def _to_agree_on(model: torch.nn.Module, config: Config, adam: Adam, groups: Any,
                 ) -> dict[str, Any]:
    """Give what must be the same at all ranks."""
    return {"zero_optimization.stage": config.stage, "angelptm.page_bytes": config.page_bytes,
            "angelptm.device_bytes": config.device_bytes, "angelptm.host_bytes": config.host_bytes,
            "angelptm.disk_bytes": config.disk_bytes, "a disk": config.disk_path is not None,
            "gradient_accumulation_steps": config.accumulation,
            "gradient_clipping": config.clipping, "precision": config.precision,
            "loss scale": config.scaling, "angelptm.update": config.update,
            "angelptm.staleness": config.staleness, "optimizer": adam,
            **{f"parameter {name}": f"{list(one.shape)}{'' if one.requires_grad else ', frozen'}"
               for name, one in model.named_parameters()},
            **{f"buffer {name}": list(one.shape) for name, one in model.named_buffers()},
            "groups of parameters": [
                {name: value if name != "params" else len(list(value))
                 for name, value in group.items()} for group in groups]}


def _refuse_meta(model: torch.nn.Module) -> None:
    for name, one in [*model.named_parameters(), *model.named_buffers()]:
        if one.is_meta:
            raise ConfigError(f"the model's tensor {name} is on the device meta and has no values: "
                              "make the model on the CPU")


def refuse_experts(model: torch.nn.Module, ranks: int) -> None:
    """Refuse experts that each rank has of its own: pages are shared, and would mix them up."""
    from harp.angelptm.moe import MoE

    for name, one in model.named_modules() if ranks > 1 else ():
        if isinstance(one, MoE):
            raise ConfigError(f"the layer {name} has experts that are spread over the {ranks} "
                              "ranks: pages of several ranks hold the same model at each")


def _as_groups(parameters: Any) -> list[dict[str, Any]]:
    found = list(parameters)
    return [dict(one) for one in found] if found and isinstance(found[0], dict) else [
        {"params": found}]


def _groups_of(optimizer: Any) -> tuple[list[dict[str, Any]], Adam]:
    if type(optimizer) not in {torch.optim.Adam, torch.optim.AdamW} or any(
            group["amsgrad"] or group["maximize"] for group in optimizer.param_groups):
        raise ConfigError(f"the optimizer is {type(optimizer).__name__}: torch.optim.Adam and "
                          "AdamW are possible, without amsgrad and maximize")
    decoupled = isinstance(optimizer, torch.optim.AdamW)
    names = ("lr", "betas", "eps", "weight_decay")
    groups = [{"params": group["params"], "decoupled": decoupled,
               **{name: group[name] for name in names}} for group in optimizer.param_groups]
    return groups, Adam(decoupled=decoupled)
