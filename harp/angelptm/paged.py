"""Parameters in pages, as code outside of the engine's calls sees them.

Memory that is not on the device is no memory of the process, and to touch it would end the process.
So a parameter in pages has a class of its own, which torch asks before each function of it:

    within the engine's calls     the function, on the parameter
    facts (shape, numel, ...)     the function, on the parameter
    what writes it (p.zero_())    the function, with its pages on the device
    what reads it (p.norm())      the function, on a copy
    its memory (p.data)           `HiddenError`, since a copy would lose what is written to it

The backward pass reads parameters without asking. A loss that is given to another backward pass
than the engine's is refused by a hook on the model's outputs, before it comes to a parameter, or
by the hook of the first gradient that is there, where the model's outputs are hidden from pytree.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harp.angelptm.paged_engine import Engine

FACTS = frozenset((
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "get_device",
    "is_floating_point", "is_complex", "is_contiguous", "is_signed", "is_pinned", "is_shared",
    "requires_grad_", "retain_grad", "register_hook", "register_post_accumulate_grad_hook",
    "__hash__", "__len__", "storage_offset"))
"""Functions that touch no memory."""
VIEWS = frozenset(("T", "mT", "H", "mH", "real", "imag"))
"""Properties that do; other properties are facts."""
MEMORY = frozenset(("data", "data_ptr", "untyped_storage", "storage", "set_", "share_memory_",
                    "resize_", "__dlpack__", "__reduce_ex__", "__deepcopy__"))
"""Names that give access to the memory itself."""
IN_PLACE = frozenset(("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__",
                      "__ifloordiv__", "__ipow__", "__imod__", "__iand__", "__ior__", "__ixor__"))
BACKWARD = frozenset((torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward))
WITHOUT_ENGINE = ("the backward pass was begun without the engine, while parameters are in pages: "
                  "call engine.backward(loss)")


class HiddenError(RuntimeError):
    """A parameter cannot be used so outside of the engine's calls; the message is one sentence."""


class PagedParameter(torch.nn.Parameter):
    """A parameter whose memory comes and goes. Made by `put_in_class`."""

    engine: weakref.ref[Engine]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function with such a parameter among its arguments."""
        del types
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            engine = _engine_of((args, kwargs))
            if engine is None or engine.is_watching:
                return func(*args, **kwargs)
            return _run_outside(engine, func, args, kwargs)


def put_in_class(parameter: torch.nn.Parameter, engine: Engine) -> None:
    """Have torch ask before each function of a parameter."""
    if type(parameter) is torch.nn.Parameter:
        parameter.__class__ = PagedParameter
        parameter.engine = weakref.ref(engine)


def take_out_of_class(parameter: torch.nn.Parameter) -> None:
    """Undo `put_in_class`."""
    if type(parameter) is PagedParameter:
        del parameter.engine
        parameter.__class__ = torch.nn.Parameter


def guard_outputs(outputs: Any, allowed: Callable[[], bool]) -> None:
    """Refuse a backward pass from these tensors unless it is allowed when it comes to them."""
    def check(gradient: torch.Tensor) -> None:
        del gradient
        if not allowed():
            raise HiddenError(WITHOUT_ENGINE)
    for one in _tensors_of(outputs):
        if one.requires_grad and not one.is_leaf:
            one.register_hook(check)


def _tensors_of(outputs: Any) -> Iterator[torch.Tensor]:
    for one in tree_leaves(outputs):
        if isinstance(one, torch.Tensor):
            yield one
        elif dataclasses.is_dataclass(one):
            yield from _tensors_of([getattr(one, part.name) for part in dataclasses.fields(one)])


def _engine_of(given: Any) -> Engine | None:
    for one in tree_leaves(given):
        if type(one) is PagedParameter:
            return one.engine()
    return None


def _run_outside(engine: Engine, func: Any, args: Any, kwargs: Any) -> Any:
    if func in BACKWARD:
        raise HiddenError(WITHOUT_ENGINE)
    name, is_property = func.__name__, False
    if name in {"__get__", "__set__", "__delete__"}:
        name, is_property = func.__self__.__name__, True
    if name in MEMORY:
        raise HiddenError(f"{name} of a parameter in pages is out of reach here: use it within "
                          "`with engine.watched():`, or take a copy by detach() or state_dict()")
    if name in FACTS or (is_property and name not in VIEWS):
        return func(*args, **kwargs)
    if name in IN_PLACE or (name.endswith("_") and not name.endswith("__")) or "out" in kwargs:
        with engine.watched():
            return func(*args, **kwargs)

    def copy(one: Any) -> Any:
        if type(one) is not PagedParameter:
            return one
        with engine.watched(), torch.no_grad():
            return one.detach().clone()
    return func(*tree_map(copy, args), **tree_map(copy, kwargs))
