"""TTF on torch: what trains search, ads and recommendation incrementally."""

from __future__ import annotations

import importlib
from typing import Any

PARTS = frozenset(("amp", "embedding", "infer"))
"""Packages that are loaded when they are used."""


def compile(module: Any, **how: Any) -> Any:  # noqa: A001  (torch's own name for it)
    """Compile a module, or an optimizer's step; `harp.ttf.compiler.compiled` is the manual."""
    from harp.ttf.compiler.compiled import compiled
    return compiled(module, **how)


def __getattr__(name: str) -> Any:
    if name not in PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
