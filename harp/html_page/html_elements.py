"""Elements of pages: tables, lists, escaped text and JSON, style, script and library."""

from __future__ import annotations

import html
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FOLDER = Path(__file__).parent
LICENCES = ("NOTICE", "LICENSE", "LICENSE-zrender", "LICENSE-d3")


def table(head: Sequence[str], body: Iterable[Sequence[str]], *, caption: str,
           left: Sequence[bool], marked: Sequence[bool] = ()) -> str:
    """An HTML table whose first column names the rows."""
    sides = [' class="left"' if one else "" for one in left]
    lines = [f"<table><caption>{text(caption)}</caption><thead><tr>",
             *(f'<th scope="col"{side}>{text(name)}</th>'
               for name, side in zip(head, sides, strict=True)), "</tr></thead><tbody>"]
    for number, cells in enumerate(body):
        lines.append('<tr class="missed">' if any(marked[number:number + 1]) else "<tr>")
        for column, (cell, one) in enumerate(zip(cells, left, strict=True)):
            kind = ' class="left fold"' if one else ""
            lines.append(f'<td{kind}>{text(cell)}</td>' if column else
                         f'<th scope="row"{kind}>{text(cell)}</th>')
        lines.append("</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def sentences(title: str, listed: Sequence[str]) -> str:
    """A list under a heading; nothing where it is empty."""
    if not listed:
        return ""
    items = "".join(f"<li>{text(sentence)}</li>" for sentence in listed)
    return f'<h3>{title}</h3><ul class="note">{items}</ul>'


def text(words: str) -> str:
    """Words as HTML."""
    return html.escape(words)


def json_text(data: dict[str, Any]) -> str:
    """JSON that no HTML parser takes for the end of its element."""
    made = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return made.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def file_text(name: str, folder: Path = FOLDER) -> str:
    """A file of this folder, or another."""
    return (folder / name).read_text("utf-8")


def licences() -> str:
    """Licences of the library, for a comment of HTML."""
    return "\n\n".join(file_text(f"echarts/{name}").replace("--", "- -") for name in LICENCES)
