"""TTF on torch: what trains search, ads and recommendation incrementally."""

from __future__ import annotations

from typing import Any

from harp.lazy_names import lazy_names


def compile(module: Any, **how: Any) -> Any:  # noqa: A001  (torch's own name for it)
    """Compile a module, or an optimizer's step; `harp.ttf.compiler.compiled` is the manual."""
    from harp.ttf.compiler.compiled import compiled
    return compiled(module, **how)


__getattr__ = lazy_names(__name__, {part: f"{__name__}.{part}:"
                                    for part in ("amp", "embedding", "infer")})
