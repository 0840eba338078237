"""Functions fit a screen, in C and in Python, product and tests alike; structs have few fields."""

from __future__ import annotations

import ast
import re
from itertools import chain
from typing import TYPE_CHECKING

from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_LINES = 60
MOST_FIELDS = 25
FOLDERS = ("bench", "cnet", "harp", "lab", "sim", "tests")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Give the statements in a statement, at every depth; no function hides in an expression."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, name, ()):
            yield inner
            yield from statements(inner)


def python_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Names and lengths of functions, docstrings not counted."""
    for node in statements(ast.parse(path.read_text())):
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


def c_structs(text: str) -> Iterator[tuple[str, int]]:
    """Names and numbers of fields of structs and unions; a group between braces is one field.

    An inner one counts for itself as well. Only brackets, commas and semicolons are looked at.
    """
    text = re.sub(r"/\*.*?\*/|//[^\n]*|^ *#(?:\\\n|[^\n])*|_Alignas\([^)]*\)", "", text,
                  flags=re.DOTALL | re.MULTILINE)
    for found in re.finditer(r"\b(?:struct|union)\s*(\w*)\s*\{", text):
        depth, fields = 1, 0
        for mark in re.findall(r"[][(){},;]", text[found.end():]):
            depth += (mark in "[({") - (mark in "])}")
            if depth == 0:
                break
            fields += depth == 1 and mark in ",;"
        yield found[1] or "without a name", fields


def test_fields_are_counted_as_a_reader_counts_them() -> None:
    text = """
    struct outer { /* four; in all */
        int a, b; // two, they are
        struct { int c[2], d; } group;
        void (*call)(int, int);
    };
    union either { char e[sizeof(int)]; _Alignas(8) int f, g; };
    struct outer only_a_use(struct outer *of);
    """
    assert list(c_structs(text)) == [("outer", 4), ("without a name", 2), ("either", 3)]


def test_structs_have_few_fields() -> None:
    wide, seen = [], 0
    for path in chain.from_iterable((ROOT / folder).rglob("*.[ch]") for folder in FOLDERS):
        structs = list(c_structs(path.read_text()))
        seen += len(structs)
        wide += [f"{path.relative_to(ROOT)}: {name} has {fields} fields; group those that change "
                 "together" for name, fields in structs if fields > MOST_FIELDS]
    assert seen > 200
    assert not wide
