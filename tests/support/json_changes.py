"""Documents with one value changed, for readers that must refuse them."""

from __future__ import annotations

import copy
from typing import Any


def changed(document: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
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
