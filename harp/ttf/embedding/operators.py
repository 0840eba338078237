"""The look-up as an operator of torch: eager, compiled, under autocast and DDP alike.

`harp::embed` reads tables and changes nothing. Its gradient, `harp::embed_gradient`, hands the
gradients of bags to the tables, where they wait for a step, and gives the anchor of the module a
gradient of its own: 0, or NaN if one of the bags' is not finite. So whatever looks at the gradients
of parameters, as GradScaler does, sees it. The anchor is also why torch differentiates at all.

Tables are no tensors: an operator gets the number of a `FeatureSet`.

Under `rehearsal` a thread looks up in empty twins of the tables, and its gradients go nowhere: a
copy of a model can be tried so while the model trains. Under `discarding` gradients alone go
nowhere.

`look_up` does the same without the operator, where nothing traces: an operator of torch costs more
than the look-up of a small batch does.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch._C import _len_torch_dispatch_stack
from torch._library.effects import EffectType

from harp.ttf.embedding import table as tables_in_c
from harp.ttf.embedding.table import BAGS, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_known: WeakValueDictionary[int, FeatureSet] = WeakValueDictionary()
_numbers = count()


class _Thread(threading.local):
    """Switches of a thread, which `rehearsal` and `discarding` turn."""

    rehearsal = discarding = False


_thread = _Thread()


class FeatureSet:
    """The tables that one call looks up, side by side in its result."""

    def __init__(self, tables: Sequence[Table], means: Sequence[bool],
                 paddings: Sequence[int | None], exchange: Any = None,
                 number: int | None = None) -> None:
        self.tables, self.exchange = list(tables), exchange
        self.means, self.paddings = list(means), list(paddings)
        self.dims = [table.dim for table in tables]
        self.width = sum(self.dims)
        made = self._template = np.zeros(len(tables), dtype=BAGS)
        made["table"] = [table.address for table in tables]
        made["mean"], made["padded"] = means, [padding is not None for padding in paddings]
        made["padding"] = [padding or 0 for padding in paddings]
        made["rows"], made["stride"] = 4 * (np.cumsum(self.dims) - self.dims), self.width
        self.order = np.argsort(made["table"], kind="stable")
        """Of the features in calls of C: by the address of their table."""
        self._mixed = bool((np.diff(self.order) < 0).any())
        self.number = next(_numbers) if number is None else number
        _known[self.number] = self

    @cached_property
    def twin(self) -> FeatureSet:
        """The same with empty tables: each id has its first row."""
        return FeatureSet([Table(table.dim, table.optimizer, seed=table.seed, bound=table.bound,
                                 shards=1) for table in self.tables],
                          self.means, self.paddings, None, -1 - self.number)

    def call(self, keys: Sequence[torch.Tensor], offsets: Sequence[torch.Tensor],
             weights: Sequence[torch.Tensor], rows: torch.Tensor) -> np.ndarray:
        """Fill in the C structs of a call, whose tensors the caller keeps alive.

        No ``offsets`` or ``weights`` at all mean that no feature has any.
        """
        made = self._template.copy()
        made["keys"] = [ids.data_ptr() for ids in keys]
        made["count"] = [ids.numel() for ids in keys]
        if offsets:
            made["offsets"] = [place.data_ptr() if place.numel() else 0 for place in offsets]
        if weights:
            made["weights"] = [weight.data_ptr() if weight.numel() else 0 for weight in weights]
        made["rows"] += np.uint64(rows.data_ptr())
        made["bags"] = len(rows)
        return made[self.order] if self._mixed else made

    def prefetch(self, keys: Sequence[torch.Tensor]) -> None:
        """Have ids on their way to their owners, or rows of tables with a cap read in a thread.

        A look-up waits for what it lacks. It also meets the disk's errors, which end this here.
        """
        if self.exchange is not None:
            self.exchange.prefetch(self, keys)
        else:
            self.read_ahead(lambda: self.call(keys, [], [], torch.empty(0, self.width)))

    def read_ahead(self, wanted: Callable[[], np.ndarray]) -> None:
        """Have the rows of an array of BAGS read, in a thread that also makes the array."""
        if any(table.memory_bytes is not None for table in self.tables):
            _reader().submit(_warm, wanted, self)


@cache
def _reader() -> ThreadPoolExecutor:
    """Return the thread that reads ahead."""
    return ThreadPoolExecutor(1, "harp-embedding")


def _warm(wanted: Callable[[], np.ndarray], known: FeatureSet) -> None:
    with suppress(OSError, RuntimeError):
        tables_in_c.warm(wanted())
    del wanted, known  # which have the ids and tables that the array points to


def features_of_number(number: int) -> FeatureSet:
    """Give a feature set by its number."""
    return _known[number]


@contextmanager
def rehearsal() -> Iterator[None]:
    """Leave tables alone in this thread."""
    _thread.rehearsal = True
    try:
        with discarding():
            yield
    finally:
        _thread.rehearsal = False


@contextmanager
def discarding() -> Iterator[None]:
    """Hand no gradient to tables in this thread."""
    before, _thread.discarding = _thread.discarding, True
    try:
        yield
    finally:
        _thread.discarding = before


def check_offsets(offsets: Sequence[torch.Tensor], keys: Sequence[torch.Tensor]) -> None:
    """Raise ValueError where offsets are broken."""
    for place, ids in zip(offsets, keys, strict=bool(offsets)):
        if not place.numel():
            continue
        wrong = tables_in_c.wrong_offset(place.data_ptr(), place.numel(), ids.numel())
        if wrong >= 0:
            raise ValueError(
                f"offsets[{wrong}] is {int(place[wrong])}: offsets begin with 0, never fall, and "
                f"end at the number of ids, which is {ids.numel()}")


def _embed(anchor: torch.Tensor, keys: list[torch.Tensor], offsets: list[torch.Tensor],
           weights: list[torch.Tensor], features: int, bags: int, width: int,
           ) -> tuple[torch.Tensor, torch.Tensor]:
    """Look up bags of ids; an empty tensor stands for no offsets or weights.

    Returns the rows of all features side by side, and a ticket for the gradient.
    """
    del anchor
    known = _known[features]
    check_offsets(offsets, keys)
    rows = torch.empty(bags, width)
    if known.exchange is None or _thread.rehearsal:
        here = known.twin if _thread.rehearsal else known
        tables_in_c.look_up(here.call(keys, offsets, weights, rows))
        return rows, torch.zeros(0 if known.exchange is None else 1, dtype=torch.int64)
    found: tuple[torch.Tensor, torch.Tensor] = known.exchange.look_up(known, keys, offsets, weights,
                                                                      rows)
    return found


def _embed_fake(anchor: torch.Tensor, keys: list[torch.Tensor], offsets: list[torch.Tensor],
                weights: list[torch.Tensor], features: int, bags: int, width: int,
                ) -> tuple[torch.Tensor, torch.Tensor]:
    del keys, offsets, weights
    tickets = 0 if _known[features].exchange is None else 1
    rows = anchor.new_empty(bags, width, dtype=torch.float32)
    return rows, anchor.new_empty(tickets, dtype=torch.int64)


def _embed_gradient(gradient: torch.Tensor, ticket: torch.Tensor, keys: list[torch.Tensor],
                    offsets: list[torch.Tensor], weights: list[torch.Tensor], features: int,
                    ) -> torch.Tensor:
    """Hand gradients to the tables. Returns the anchor's gradient."""
    gradient = gradient.float().contiguous()
    if _thread.discarding:
        return torch.full((1,), 0.0 if gradient.isfinite().all() else float("nan"))
    known = _known[features]
    if known.exchange is None:
        fine = tables_in_c.add(known.call(keys, offsets, weights, gradient))
    else:
        fine = known.exchange.add(known, keys, offsets, weights, gradient, ticket)
    return torch.full((1,), 0.0 if fine else float("nan"))


def _gradient_fake(gradient: torch.Tensor, ticket: torch.Tensor, keys: list[torch.Tensor],
                   offsets: list[torch.Tensor], weights: list[torch.Tensor], features: int,
                   ) -> torch.Tensor:
    del ticket, keys, offsets, weights, features
    return gradient.new_empty(1, dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, keys, offsets, weights, ctx.features, _, _ = inputs
    ctx.n = len(keys)
    ctx.save_for_backward(output[1], *keys, *offsets, *weights)


def _backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
    n = ctx.n
    ticket, *saved = ctx.saved_tensors
    lists = saved[:n], saved[n:2 * n], saved[2 * n:]
    nothing = [None] * n
    return (torch.ops.harp.embed_gradient(gradient, ticket, *lists, ctx.features),
            nothing, nothing, nothing, None, None, None)


class _LookUp(torch.autograd.Function):
    """`harp::embed` and its gradient, where nothing traces."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, known: FeatureSet, given: tuple[Any, ...],
                bags: int) -> torch.Tensor:
        keys, offsets, weights = given
        rows, ticket = _embed(anchor, keys, offsets, weights, known.number, bags, known.width)
        ctx.known, ctx.given, ctx.ticket = known, given, ticket
        ctx.versions = [tensor._version for tensors in given for tensor in tensors]
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        if ctx.versions != [tensor._version for tensors in ctx.given for tensor in tensors]:
            raise RuntimeError("ids, offsets or weights of a look-up were changed in place before "
                               "its backward")
        keys, offsets, weights = ctx.given
        return (_embed_gradient(gradients[0], ctx.ticket, keys, offsets, weights,
                                ctx.known.number), None, None, None)


def plain(keys: Sequence[Any]) -> bool:
    """Say whether these are tensors with memory, and nothing traces or intercepts operators."""
    return (not torch.compiler.is_compiling() and not _len_torch_dispatch_stack()
            and all(type(ids) is torch.Tensor for ids in keys))


def look_up(anchor: torch.Tensor, known: FeatureSet, keys: list[torch.Tensor],
            offsets: list[torch.Tensor], weights: list[torch.Tensor], bags: int) -> torch.Tensor:
    """Look up bags of ids in eager mode; no offsets or weights at all as in `FeatureSet.call`."""
    if not torch.is_grad_enabled() or not anchor.requires_grad:
        return _embed(anchor, keys, offsets, weights, known.number, bags, known.width)[0]
    rows: torch.Tensor = _LookUp.apply(anchor, known, (keys, offsets, weights), bags)
    return rows


embed = torch.library.custom_op("harp::embed", _embed, mutates_args=(), device_types="cpu")
embed.register_fake(_embed_fake)
embed.register_autograd(_backward, setup_context=_setup)
embed_gradient = torch.library.custom_op("harp::embed_gradient", _embed_gradient, mutates_args=(),
                                         device_types="cpu")
embed_gradient.register_fake(_gradient_fake)
# To hand over a gradient is an effect: two calls with equal arguments stay two when compiled.
embed_gradient.register_effect(EffectType.ORDERED)
