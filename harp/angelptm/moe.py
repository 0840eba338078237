"""A mixture of experts whose experts are spread over ranks of the backend ``lightcc``.

    layer = MoE(width, 64, 8, lambda number: FeedForward(width))
    y = layer(x)                                # x: (…, width), another one at each rank
    loss = loss + 0.01 * layer.balance

A router gives each token its ``top_k`` experts with weights. A token is sent to a host once
(`harp.collectives.alltoallv`), with its weights and the numbers of its experts behind its values.
Experts add up there, and sums come back. Tokens are cut into chunks: experts compute on one while
the next one is sent, forwards and backwards.

The result, and the gradients of inputs, router and experts, are those of a layer that has all
experts. Gradients of the router are of a rank's own tokens; average them as those of other layers.
Those of experts are of all ranks' tokens already: keep them out of DDP, and divide them by the
number of ranks where the loss is an average over ranks (`expert_parameters`).
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from harp.angelptm.rows import add_rows, dot_rows, take_rows
from harp.angelptm.tokens import Places, chunk_bounds, within_capacity
from harp.collectives.alltoallv import WAYS, combine, dispatch
from harp.collectives.choice import choose
from harp.lightcc.torch_base.single import all_gather_single
from harp.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from harp.collectives.alltoallv import Way
    from harp.collectives.blocks import Blocks
    from harp.collectives.choice import Rates
    from harp.collectives.collective_plan import Plan
    from harp.collectives.ir import Ints
    from harp.lightcc.torch import LightGroup

FLOAT_BYTES = 4
TYPES = (torch.float32, torch.bfloat16)
"""Of tokens, router and experts. Values are sent and added up in float32."""


class MoE(nn.Module):
    """A layer of experts.

    Args:
        width: of a token.
        experts: in all; each rank has as many.
        top_k: experts of a token.
        make_expert: makes the expert of a number, on the rank that has it. Seed by the number
            where it draws weights: ranks with equal seeds make equal experts.
        group: the process group of the ranks; by default all ranks, or one rank without a group.
        capacity_factor: an expert takes this many times its even share of a rank's choices, and
            leaves out the others; None: it takes all.
        chunks: of a rank's tokens.
        way: of the all-to-all; chosen for each call by its counts where it is not given.
        rates: what the choice believes of hosts and network.

    """

    def __init__(self, width: int, experts: int, top_k: int,
                 make_expert: Callable[[int], nn.Module], *,
                 group: dist.ProcessGroup | None = None, capacity_factor: float | None = None,
                 chunks: int = 4, way: Way | None = None, rates: Rates | None = None) -> None:
        super().__init__()
        for name, value, most in (("width", width, math.inf), ("experts", experts, math.inf),
                                  ("top_k", top_k, experts), ("chunks", chunks, math.inf)):
            if not isinstance(value, int) or not 1 <= value <= most:
                raise ValueError(f"{name} is {value!r}; allowed is a whole number of 1 or more" + (
                    f", up to the {experts} experts" if name == "top_k" else ""))
        if capacity_factor is not None and not (isinstance(capacity_factor, int | float)
                                                and 0 < capacity_factor < math.inf):
            raise ValueError(f"capacity_factor is {capacity_factor!r}; allowed is a number of more "
                             "than 0, or None")
        if way is not None and way not in WAYS:
            raise ValueError(f"way is {way!r}{did_you_mean(way, WAYS, 0.4)} (allowed: "
                             f"{', '.join(WAYS)})")
        self.width, self.top_k, self.capacity_factor = width, top_k, capacity_factor
        self._chunks, self._way, self._rates = chunks, way, rates
        self._group = _light_group(group)
        self._rank = self._group.rank() if self._group else 0
        self.places = Places(experts, self._group.host_numbers if self._group else (0,))
        first = self._rank * self.places.of_a_rank
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(make_expert(number) for number in range(
            first, first + self.places.of_a_rank))
        self._first = first
        self.balance = torch.zeros(())
        """Load-balancing loss of the last call, 1 where all experts are used alike."""
        self.rows: Ints = np.zeros((0, 0, 0), np.int64)
        """Rows of the last call: by chunk, rank and kind of block (`Places.members`)."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave the graph of the last call out of copies."""
        return {**self.__dict__, "balance": self.balance.detach()}

    def expert_parameters(self) -> Iterator[nn.Parameter]:
        """Give the parameters that this rank alone has."""
        yield from self.experts.parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Send tokens to their experts, and add up what these say."""
        if x.shape[-1] != self.width or x.dtype not in TYPES or not x.is_cpu:
            raise ValueError(f"tokens are of {tuple(x.shape)[-1:]} {x.dtype} on {x.device}; "
                             f"allowed is ({self.width},) torch.float32 or torch.bfloat16 on the "
                             "CPU")
        tokens = x.reshape(-1, self.width)
        weights, chosen = self._route(tokens)
        payload = torch.cat([tokens.float(), weights, _as_floats(chosen)], dim=1)
        bounds = chunk_bounds(len(tokens), self._chunks)
        index, self.rows = self._sort(chosen.numpy(), bounds)
        way_of = cache(self._way_of)
        # A block names the ranks that its tokens are for, and those that sums come back from.
        there, back = ([_AllToAll(self._group, self.places.blocks(rows, FLOAT_BYTES * width),
                                  self.places.hosts, way_of, sums=sums) for rows in self.rows]
                       for width, sums in ((payload.shape[1], False), (self.width, True)))
        coming = [_begin(_Take.apply(payload[start:end], tokens_of), call)
                  for (start, end), tokens_of, call in zip(bounds, index, there, strict=True)]
        # Experts compute on a chunk while others are sent.
        returning = [_begin(self._ask(moving, x.dtype), call)
                     for moving, call in zip(coming, back, strict=True)]
        return torch.cat([
            _Add.apply(end - start, tokens_of, None, _End.apply(*moving))
            for (start, end), tokens_of, moving in zip(bounds, index, returning, strict=True)
        ]).view(x.shape).to(x.dtype)

    def _route(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose experts; those without room are -1. Weights of a token's choices add up to 1."""
        shares = self.router(tokens).float().softmax(-1)
        weights, chosen = shares.topk(self.top_k)
        experts = self.places.experts
        used = torch.bincount(chosen.flatten(), minlength=experts) / max(chosen.numel(), 1)
        self.balance = experts * (used * shares.mean(0)).sum() if len(tokens) else shares.sum()
        if self.capacity_factor is not None:
            even = chosen.numel() / experts
            chosen = torch.from_numpy(within_capacity(
                chosen.numpy(), experts, math.ceil(self.capacity_factor * even)))
        return weights / weights.sum(-1, keepdim=True), chosen

    def _sort(self, chosen: Ints, bounds: Sequence[tuple[int, int]],
              ) -> tuple[list[torch.Tensor], Ints]:
        """Sort the tokens of each chunk by kind of block, and learn all ranks' rows of each."""
        index, own = [], []
        for start, end in bounds:
            tokens, rows = self.places.sort(chosen[start:end])
            index.append(torch.from_numpy(tokens))
            own.append(rows)
        given = torch.from_numpy(np.stack(own))
        if self._group is None:
            return index, given.numpy()[:, None]
        table = given.new_empty(self._group.size(), *given.shape)
        all_gather_single(table, given, group=self._group)
        return index, np.ascontiguousarray(table.numpy().transpose(1, 0, 2))

    def _way_of(self, make: Callable[..., Plan]) -> Way:
        """Give the way of all chunks, there (dispatch) or back (combine)."""
        if self._way is None:
            blocks = self.places.blocks(self.rows.sum(axis=0), FLOAT_BYTES * self.width)
            return choose(make, blocks, self.places.hosts, self._rates)
        return "direct" if make is combine and self._way == "hierarchical" else self._way

    def _ask(self, coming: _Moving, dtype: torch.dtype) -> torch.Tensor:
        """Let this rank's experts work on the tokens that came, and add up what they say."""
        rows = _End.apply(*coming)
        values, weights, numbers = rows.split([self.width, self.top_k, self.top_k], dim=1)
        expert = numbers.detach().contiguous().view(torch.int32).long() - self._first
        row, choice = ((expert >= 0) & (expert < len(self.experts))).nonzero(as_tuple=True)
        order = expert[row, choice].argsort(stable=True)
        row, choice = row[order], choice[order]
        counts = torch.bincount(expert[row, choice], minlength=len(self.experts)).tolist()
        parts = _Take.apply(values.contiguous(), row).split(counts)
        return _Add.apply(len(rows), row, weights[row, choice], *(
            self._say(number, part.to(dtype)) for number, part in enumerate(parts)))

    def _say(self, number: int, part: torch.Tensor) -> torch.Tensor:
        """Let an expert work. ValueError where it says what does not fit into a token."""
        said: torch.Tensor = self.experts[number](part)
        if said.shape != part.shape:
            raise ValueError(f"expert {self._first + number} gives {list(said.shape)} for "
                             f"{list(part.shape)}; allowed is the same")
        return said.float()


def _as_floats(numbers: torch.Tensor) -> torch.Tensor:
    """Give the bits of int32 as float32, to be sent with other values."""
    return numbers.to(torch.int32).view(torch.float32)


def _light_group(group: dist.ProcessGroup | None) -> LightGroup | None:
    if group is None and not dist.is_initialized():
        return None
    from harp.lightcc.torch import LightGroup

    found = dist.distributed_c10d._get_default_group() if group is None else group
    if not isinstance(found, LightGroup):
        raise ValueError(f"the experts' group has the backend {dist.get_backend(found)}; allowed "
                         "is lightcc")
    return found


# ---- All-to-alls of a chunk ----

class _AllToAll:
    """One direction of a round trip: a plan forwards, and the one back for gradients."""

    def __init__(self, group: LightGroup | None, blocks: Blocks, hosts: tuple[int, ...],
                 way_of: Callable[[Callable[..., Plan]], Way], *, sums: bool) -> None:
        self._group, self._blocks, self._hosts, self._way_of = group, blocks, hosts, way_of
        self._sums = sums
        self._under_way: tuple[Future[None], torch.Tensor, torch.Tensor] | None = None
        self._came: torch.Tensor | None = None

    def begin(self, given: torch.Tensor, *, gradients: bool) -> None:
        """Begin to send rows."""
        if self._group is None:
            self._came = given
            return
        make = combine if self._sums != gradients else dispatch
        blocks, rank = self._blocks, self._group.rank()
        nbytes = (blocks.sent_bytes if make is combine else blocks.came_bytes)[rank]
        out = given.new_empty(int(nbytes) // (FLOAT_BYTES * given.shape[1]), given.shape[1])
        if gradients and make is combine:
            given = given.clone()  # autograd's own, and a combine leaves partial sums in it
        plan = make(blocks, self._way_of(make), self._hosts, FLOAT_BYTES)
        self._under_way = self._group.run_blocks(plan, given, out), given, out

    def end(self) -> torch.Tensor:
        """Wait for what comes."""
        if self._under_way is not None:
            over, _, self._came = self._under_way
            over.result()
            self._under_way = None
        found, self._came = self._came, None
        assert found is not None
        return found


_Moving = tuple[torch.Tensor, _AllToAll]


def _begin(rows: torch.Tensor, all_to_all: _AllToAll) -> _Moving:
    """Send each row to its ranks, or sums back."""
    return _Begin.apply(rows, all_to_all), all_to_all


_Backward = TypeVar("_Backward")


def _first_order(backward: _Backward) -> _Backward:
    """Refuse a derivative of a backward pass: it would be incomplete."""
    return cast("_Backward", once_differentiable(backward))


class _Begin(torch.autograd.Function):
    """Begin to send; backwards, wait for the gradients.

    The tensor that comes has another shape than the one that is sent, so the all-to-all holds it,
    and autograd gets a number in its place, which binds the end to the begin.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, all_to_all: _AllToAll) -> torch.Tensor:
        ctx.all_to_all = all_to_all
        all_to_all.begin(rows.contiguous(), gradients=False)
        return rows.new_zeros(())

    @staticmethod
    @_first_order
    def backward(ctx: Any, _: torch.Tensor) -> tuple[Any, ...]:
        return ctx.all_to_all.end(), None


class _End(torch.autograd.Function):
    """Wait for what was sent; backwards, begin to send the gradients."""

    @staticmethod
    def forward(ctx: Any, begun: torch.Tensor, all_to_all: _AllToAll) -> torch.Tensor:
        ctx.all_to_all, ctx.begun = all_to_all, begun
        return all_to_all.end()

    @staticmethod
    @_first_order
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        ctx.all_to_all.begin(gradient.contiguous(), gradients=True)
        return ctx.begun, None


# ---- Rows ----

class _Take(torch.autograd.Function):
    """Rows by index."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.rows = len(table)
        return take_rows(table.contiguous(), index)

    @staticmethod
    @_first_order
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        index, = ctx.saved_tensors
        total = gradient.new_zeros(ctx.rows, gradient.shape[1])
        return add_rows(total, gradient.contiguous(), index), None


class _Add(torch.autograd.Function):
    """Sums of rows by index, each times its weight; the rows are in parts, one behind another."""

    @staticmethod
    def forward(ctx: Any, rows: int, index: torch.Tensor, weights: torch.Tensor | None,
                *parts: torch.Tensor) -> torch.Tensor:
        kept = [part.contiguous() for part in parts]
        ctx.save_for_backward(index, weights, *(kept if weights is not None else ()))
        ctx.counts = [len(part) for part in parts]
        total = kept[0].new_zeros(rows, kept[0].shape[1])
        for part, at, by in zip(kept, *_cut(ctx.counts, index, weights), strict=True):
            add_rows(total, part, at, by)
        return total

    @staticmethod
    @_first_order
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        index, weights, *parts = ctx.saved_tensors
        gradient = gradient.contiguous()
        ats, bys = _cut(ctx.counts, index, weights)
        dots = None if weights is None else torch.cat(
            [dot_rows(gradient, part, at) for part, at in zip(parts, ats, strict=True)])
        return (None, None, dots,
                *(take_rows(gradient, at, by) for at, by in zip(ats, bys, strict=True)))


def _cut(counts: list[int], index: torch.Tensor, weights: torch.Tensor | None,
         ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor | None]]:
    """Give each part its own."""
    return index.split(counts), ([None] * len(counts) if weights is None else
                                 weights.contiguous().split(counts))
