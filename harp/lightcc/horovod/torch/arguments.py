"""Checks of the arguments of Horovod's calls: each that has a wrong type is one sentence.

Arguments of the same name mean the same in all calls, so `checked` finds the check by the name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch

from harp.lightcc.horovod.world import ProcessSet

if TYPE_CHECKING:
    from collections.abc import Callable

    _Call = TypeVar("_Call", bound=Callable[..., Any])


class _Check(NamedTuple):
    """A check of an argument, and what it allows in words."""

    is_right: Callable[[Any], bool]
    allowed: str


def _is_number(value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        return False
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):  # the last is torch's, for many elements
        return False
    return True


def _are_whole_numbers(value: Any) -> bool:
    return (isinstance(value, Iterable) and not isinstance(value, (str, bytes))
            and all(_is_number(one) and int(one) == one for one in value))


_TENSOR = _Check(lambda value: isinstance(value, torch.Tensor), "a torch.Tensor")
_NUMBER = _Check(_is_number, "a number")
_CHECKS = {
    "tensor": _TENSOR,
    "tensors": _Check(lambda value: isinstance(value, Sequence) and not isinstance(value, str),
                      "a list or tuple of tensors"),
    "prescale_factor": _NUMBER, "postscale_factor": _NUMBER, "gradient_predivide_factor": _NUMBER,
    "splits": _Check(lambda value: value is None or _are_whole_numbers(value),
                     "a whole number of rows for each rank, in a list or tensor"),
    "process_set": _Check(lambda value: isinstance(value, ProcessSet), "an hvd.ProcessSet"),
    "compression": _Check(lambda value: hasattr(value, "compress") and hasattr(value, "decompress"),
                          "hvd.Compression.none and hvd.Compression.fp16"),
    "handle": _Check(lambda value: isinstance(value, int), "what a call with _async gave"),
    "optimizer": _Check(lambda value: isinstance(value, torch.optim.Optimizer),
                        "a torch.optim.Optimizer"),
}


def checked(call: _Call) -> _Call:
    """Have a call of Horovod's refuse arguments of a wrong type. Raises TypeError."""
    wanted = [(at, name) for at, name in enumerate(inspect.signature(call).parameters)
              if name in _CHECKS]

    @functools.wraps(call)
    def check_and_call(*args: Any, **named: Any) -> Any:
        for at, name in wanted:
            if at < len(args):
                _check(call.__name__, name, args[at])
            elif name in named:
                _check(call.__name__, name, named[name])
        return call(*args, **named)
    return cast("_Call", check_and_call)


def _check(call: str, name: str, value: Any) -> None:
    _refuse_unless(_CHECKS[name], call, name, value)
    if name == "tensors":
        for at, one in enumerate(value):
            _refuse_unless(_TENSOR, call, f"tensors[{at}]", one)


def _refuse_unless(check: _Check, call: str, name: str, value: Any) -> None:
    if not check.is_right(value):
        kind = type(value)
        found = (repr(value) if value is None or kind in {str, int, float}
                 else f"a {kind.__module__}.{kind.__name__}".replace("builtins.", ""))
        raise TypeError(f"hvd.{call}: {name} is {found}; allowed is {check.allowed}")
