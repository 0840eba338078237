"""Valid variants of a topology file that differ in one value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sim.schema.checks import check
from sim.schema.input_errors import problems
from sim.schema.parameters import PLAIN_VALUES
from sim.schema.topology_model import Topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.schema.input_errors import Path, Problem

LEFT_OUT = object()
"""In place of a value: the key is left out."""
NOBODY = "no-such-word"
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?) ?([A-Za-z%/]{1,8})")


class Variants:
    """Variants of one file's plain data, whose paths are taken from its ``folder``."""

    def __init__(self, plain: dict[str, Any], folder: str = "") -> None:
        self._plain = plain
        self._context = PLAIN_VALUES | {"folder": folder}

    def leaves(self) -> Iterator[Path]:
        """Paths of all values that are no mapping and no list, in the order of the file."""
        yield from _leaves(self._plain, ())

    def make(self, path: Path, value: object) -> Topology | None:
        """The file with another value at ``path``, or without that key; None if it is not valid."""
        made, found = self._made(path, value)
        return None if found else made

    def others(self, path: Path) -> Iterator[tuple[object, Topology]]:
        """Valid variants with another value at ``path``, the most different first."""
        value: Any = self._plain
        for part in path:
            value = value[part]
        for other in self._values(path, value):
            made = self.make(path, other)
            if made is not None:
                yield other, made

    def _values(self, path: Path, value: object) -> list[object]:
        """Other values for ``path``; none if any text is allowed there, as for a name."""
        if isinstance(value, bool):
            return [not value]
        if isinstance(value, int):
            others = dict.fromkeys((value * 1000, 1, value // 2, value * 2, value + 1))
            return [other for other in others if other != value]
        if isinstance(value, float):
            return [value / 1000, value * 1000, value / 2, value * 2, 1.0 if not value else 0.0]
        if isinstance(value, str):
            return self._quantities(value) or [word for word in self._words(path) if word != value]
        return []

    def _words(self, path: Path) -> list[str]:
        """Words that are allowed at ``path``, taken from the error of a wrong one."""
        _, found = self._made(path, NOBODY)
        return [str(name) for problem in found if problem.path == path for name in problem.names]

    @staticmethod
    def _quantities(text: str) -> list[object]:
        match = _QUANTITY.fullmatch(text)
        if match is None:
            return []
        number, unit = float(match[1]), match[2]
        if number == 0:
            return [f"{other}{unit}" for other in (1000000, 1000, 1)]
        return [f"{number * factor:.12g}{unit}" for factor in (1e-6, 1e6, 1e-3, 1e3, 0.5, 2)]

    def _made(self, path: Path, value: object) -> tuple[Topology | None, list[Problem]]:
        plain = _put(self._plain, path, value)
        try:
            made = Topology.model_validate(plain, context=self._context)
        except ValidationError as error:
            return None, problems(error, plain)
        return made, list(check(made))


def _leaves(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _leaves(child, (*path, number))
    else:
        yield path


def _put(value: Any, path: Path, new: object) -> Any:
    """Copy what lies on the path, share the rest."""
    copy = value.copy()
    part = path[0]
    if len(path) > 1:
        copy[part] = _put(value[part], path[1:], new)
    elif new is LEFT_OUT:
        del copy[part]
    else:
        copy[part] = new
    return copy
