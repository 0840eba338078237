"""Operators as torch runs them: whatever reads a parameter in pages finds it there.

Be it a module, a function with tied weights, or a backward pass (torch.utils._python_dispatch).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from harp.angelptm.paged_engine import Engine


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
        kwargs = kwargs or {}
        written = self._engine.written(func, args) if func._schema.is_mutable else frozenset()
        self._engine.touch((*args, *kwargs.values()), is_view=func.is_view)
        result = func(*args, **kwargs)
        if written:
            self._engine.put_back(written)
        return result
