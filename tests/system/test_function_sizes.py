"""Functions fit a screen, in C and in Python, product and tests alike."""

from __future__ import annotations

import ast
from itertools import chain
from typing import TYPE_CHECKING

from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_LINES = 60
FOLDERS = ("bench", "cnet", "harp", "lab", "sim", "tests")


def python_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Names and lengths of functions, docstrings not counted."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = len((ast.get_docstring(node, clean=False) or "").splitlines())
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - lines


def c_functions(path: Path) -> Iterator[tuple[str, int]]:
    """First lines and lengths of what stands between braces at the margin, as clang-format has it.

    Tables begin with a brace at the end of their first line.
    """
    begin = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line == "{":
            begin = number
        elif line == "}" and begin is not None:
            yield f"line {begin}", number - begin + 1
            begin = None


def test_functions_fit_a_screen() -> None:
    long = []
    for path in chain.from_iterable((ROOT / folder).rglob("*.[chp]*") for folder in FOLDERS):
        functions = {".py": python_functions, ".c": c_functions, ".h": c_functions}.get(path.suffix)
        if functions is not None:
            long += [f"{path.relative_to(ROOT)}: {name} has {lines} lines"
                     for name, lines in functions(path) if lines > MOST_LINES]
    assert not long
