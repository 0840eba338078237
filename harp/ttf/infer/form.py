"""Arguments and results of a model, by the example that an engine was made with.

Engines take and give flat tensors. An engine that was compiled for a type, a shape or a number does
not look at them again, so a call that differs from the example is refused.
"""

from __future__ import annotations

import importlib
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Leaf:
    """A tensor of a call, or what else an engine was made with."""

    name: str
    """Its place among the arguments."""
    kind: str = ""
    """Type of a tensor."""
    shape: tuple[int, ...] = ()
    is_batch: bool = False
    """Whether the first dimension may be any."""
    constant: str = ""
    """The text (repr) of an argument that is no tensor."""

    def check(self, given: Any) -> None:
        """Refuse what the engine was not made for. ValueError."""
        if self.constant:
            if repr(given) != self.constant:
                raise ValueError(f"argument {self.name} is {given!r}; the engine was made with "
                                 f"{self.constant}, so optimize again with the other one")
            return
        free = int(self.is_batch)
        if not isinstance(given, torch.Tensor) or str(given.dtype) != self.kind or (
                len(given.shape) != len(self.shape)
                or tuple(given.shape[free:]) != self.shape[free:]):
            found = (f"{given.dtype} {list(given.shape)}" if isinstance(given, torch.Tensor)
                     else type(given).__name__)
            sizes = ["any" if free and not number else str(size)
                     for number, size in enumerate(self.shape)]
            raise ValueError(f"argument {self.name} is {found}; the engine was made for "
                             f"{self.kind} [{', '.join(sizes)}]")


@dataclass(frozen=True)
class Form:
    """The form of calls and of results."""

    call: pytree.TreeSpec
    leaves: list[Leaf]
    result: pytree.TreeSpec
    nothing: list[int]
    """Places of None among the results."""

    def tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """Give the tensors of a call, in the example's order. ValueError."""
        try:
            given = self.call.flatten_up_to((args, kwargs))
        except ValueError as error:
            raise ValueError(self._say_how(args, kwargs, error)) from None
        for leaf, one in zip(self.leaves, given, strict=True):
            leaf.check(one)
        return [one for one in given if isinstance(one, torch.Tensor)]

    def _say_how(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> str:
        own_args, own_kwargs = pytree.tree_unflatten(self.leaves, self.call)
        if len(args) == len(own_args) and kwargs.keys() == own_kwargs.keys():
            return f"an argument has another form than in the example: {error}".partition("\n")[0]
        called, wanted = (f"{len(by_place)} arguments by place and {', '.join(by_name) or 'none'} "
                          "by keyword" for by_place, by_name in ((args, kwargs),
                                                                 (own_args, own_kwargs)))
        return f"the call has {called}; the example has {wanted}"

    def answer(self, tensors: list[torch.Tensor]) -> Any:
        """Give results as the model does."""
        each = iter(tensors)
        return pytree.tree_unflatten(
            [None if place in self.nothing else next(each)
             for place in range(self.result.num_leaves)], self.result)

    def dumped(self) -> dict[str, Any]:
        """Give it as JSON can hold it."""
        return {"call": pytree.treespec_dumps(self.call), "leaves": [vars(one) for one in
                                                                     self.leaves],
                "result": pytree.treespec_dumps(self.result), "nothing": self.nothing}


def know_caches() -> None:
    """Have torch take apart what causal models of transformers remember, where these are used."""
    if "transformers.cache_utils" in sys.modules:
        with suppress(ImportError):  # of an old release
            exports: Any = importlib.import_module("transformers.integrations.executorch")
            exports.register_dynamic_cache_export_support()


def form_of(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, *, any_batch: bool) -> Form:
    """Make the form of an example and its result. ValueError if the result is no tensors alone."""
    paths, call = pytree.tree_flatten_with_path((args, kwargs))
    leaves = []
    for path, one in paths:
        name = pytree.keystr(path[1:])
        leaves.append(Leaf(name, str(one.dtype), tuple(one.shape), any_batch)
                      if isinstance(one, torch.Tensor) else Leaf(name, constant=repr(one)))
    found, spec = pytree.tree_flatten_with_path(result)
    for path, one in found:
        if one is not None and not isinstance(one, torch.Tensor):
            raise ValueError(f"the model gives {pytree.keystr(path) or 'something'} of "
                             f"{type(one).__name__}; allowed are tensors and None, in tuples, lists"
                             " and dictionaries")
    return Form(call, leaves, spec, [place for place, (_, one) in enumerate(found) if one is None])


def loaded_form(kept: Any) -> Form:
    """Read a form from what `Form.dumped` gave. KeyError, TypeError, ValueError otherwise."""
    leaves = [Leaf(**{**one, "shape": tuple(one["shape"])}) for one in kept["leaves"]]
    return Form(_loaded_spec(kept["call"]), leaves, _loaded_spec(kept["result"]),
                list(kept["nothing"]))


def _loaded_spec(text: str) -> pytree.TreeSpec:
    """Import the modules of the classes in a tree, which have torch know them, and read it."""
    for name in re.findall(r'"type": "([\w.]+)\.\w+"', text):
        with suppress(ImportError):
            importlib.import_module(name)
    know_caches()
    try:
        return pytree.treespec_loads(text)
    except NotImplementedError as error:
        raise ValueError(f"torch does not know a class in it: {error}") from None
