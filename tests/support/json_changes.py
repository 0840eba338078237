"""Documents with one value changed, for readers that must refuse them."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator

Place = tuple[str | int, ...]

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["25Gbps", "1us", "2MiB", "50%", "h-0", "f", "tcp", "a-b", "\ud800", 10**30,
                     -1, 0, 1e300, 2**63, "9" * 5000]))
anything = st.recursive(scalars, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=5)
"""Plain data of any kind, as a mistake in a file may be."""


def changed(document: Any, *path: Any, value: Any) -> Any:
    """Copy a document, with another value at ``path``; None: with nothing there."""
    made = copy.deepcopy(document)
    inner: Any = made
    for step in path[:-1]:
        inner = inner[step]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made


def places(document: Any, path: Place = ()) -> list[Place]:
    """Give every place inside plain data, but the whole."""
    inner = document.items() if isinstance(document, dict) else (
        enumerate(document) if isinstance(document, list) else ())
    return [deep for key, value in inner
            for deep in ((*path, key), *places(value, (*path, key)))]


@contextmanager
def one_sentence_at_most(kind: type[Exception], begin: str = "") -> Iterator[None]:
    """Let a refusal pass that is one sentence with this beginning."""
    try:
        yield
    except kind as error:
        if "\n" in str(error) or not str(error).startswith(begin):
            raise AssertionError(str(error)) from error
