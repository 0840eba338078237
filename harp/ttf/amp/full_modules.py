"""Modules that stay in full precision, and the search for those that overflow.

A module that is pinned gets a class derived from its own whose ``forward`` turns autocast off and
takes floats as float32. A class is part of what torch.compile guards, so that compiled code notices
it, once.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from harp.module_names import modules_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PINNED: dict[Any, Any] = {}
"""Derived classes by their own."""


def _in_full(value: Any) -> Any:
    if torch.is_tensor(value) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value


def _pinned_class(kind: Any) -> Any:
    """Derive a class once, so that equal modules have equal ones."""
    if kind in _PINNED:
        return _PINNED[kind]

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(_in_full, (args, kwargs))
        device = next((tensor.device.type for tensor in self.parameters()), "cpu")
        with torch.autocast(device, enabled=False):
            return kind.forward(self, *args, **kwargs)
    _PINNED[kind] = type(f"Full{kind.__name__}", (kind,),
                         {"forward": forward, "__module__": __name__})
    return _PINNED[kind]


def pin(module: nn.Module) -> None:
    """Keep a module in full precision from now on."""
    module.__class__ = _pinned_class(type(module))


def _all_finite(values: Any, *, masks: bool) -> bool:
    """Whether values are finite; where masks are allowed, -inf is not a mistake."""
    for value in pytree.tree_leaves(values):
        if torch.is_tensor(value) and value.is_floating_point():
            bad = (value.isnan() | value.isposinf()) if masks else ~value.isfinite()
            if bad.any():
                return False
    return True


class Search:
    """The first module of a run whose results are not finite though its inputs are.

    Code between modules is its caller's. In the backward pass the module is to blame that the
    first non-finite gradient comes out of.
    """

    def __init__(self, model: nn.Module) -> None:
        self.blamed: str | None = None
        self._modules = dict(modules_by_name(model))  # of a wrapper and what it wraps, the latter
        self._stack: list[tuple[str, bool]] = []
        self._owner: dict[int, str] = {}
        self._tensors: list[torch.Tensor] = []
        self._handles: list[Any] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch every module; nothing is compiled meanwhile, since compiled code has no hooks."""
        for name, module in self._modules.items():
            self._handles += [
                module.register_forward_pre_hook(self._before(name), with_kwargs=True),
                module.register_forward_hook(self._after(name))]
            for parameter in module.parameters(recurse=False):
                self._claim(parameter, name)
        try:
            with torch.compiler.set_stance("force_eager"):
                yield
        finally:
            for handle in self._handles:
                handle.remove()
            self._tensors.clear()

    def _before(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            finite = _all_finite((args, kwargs), masks=True)
            if not finite:
                self._blame_caller()
            self._stack.append((name, finite))
            for value in pytree.tree_leaves((args, kwargs)):
                self._claim(value, name)
        return hook

    def _after(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, result: Any) -> None:
            _, finite = self._stack.pop()
            if not _all_finite(result, masks=False):
                if finite and self.blamed is None:
                    self.blamed = name
                self._blame_caller()
            for value in pytree.tree_leaves(result):
                self._claim(value, self._stack[-1][0] if self._stack else "")
        return hook

    def _blame_caller(self) -> None:
        if self.blamed is None:
            self.blamed = next((name for name, finite in reversed(self._stack) if finite), "")

    def _claim(self, value: Any, name: str) -> None:
        """Note the module that a tensor's gradient comes out of; the last to claim it is right."""
        if not (torch.is_tensor(value) and value.requires_grad):
            return
        if id(value) not in self._owner:
            self._tensors.append(value)  # so that no other tensor gets its id
            self._handles.append(value.register_hook(self._arrived(id(value))))
        self._owner[id(value)] = name

    def _arrived(self, key: int) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            if self.blamed is None and not gradient.isfinite().all():
                self.blamed = self._owner[key]
        return hook
