"""Names of a package that are loaded when they are first used (PEP 562).

Some parts of a package need torch, or take long to load; an import of the package loads none of
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package.

    Args:
        package: its name.
        places: for each name where it is, as ``module:name``, or ``module:`` for a module.
    """
    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from pkgutil import resolve_name

        return resolve_name(places[name])
    return load
