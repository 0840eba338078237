"""Extension of Griffe: docstrings, which are plain text, become Markdown for the site's API pages.

Two habits of plain text mean something else in Markdown, or nothing: an example that begins with
``>>>`` becomes a block of code, and a paragraph that ends in ``::`` ends in a colon.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from griffe import Extension

if TYPE_CHECKING:
    from griffe import Object

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)


class PlainText(Extension):
    """Rewrite each docstring as it is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Griffe calls this for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The docstring with its examples fenced."""
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return _EXAMPLE.sub(lambda m: f"{m[1]}```pycon\n{m[0]}\n{m[1]}```", text)
