"""The points of a sweep: a grid, a list or a random design over keys of the topology file.

`points` gives all of them in the order of the result; `samples` gives the few that have every key
and every value, or bound, at least once, to find wrong ones before the work starts.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.schema.input_errors import Path, Problem, TopologyError, show
from sim.schema.source import parse_value
from sim.sweeps.sweep_file import MOST_POINTS, Bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sim.sweeps.sweep_file import Random, SweepFile

Settings = dict[str, Any]
_NUMBER = re.compile(r"\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(\S*)\s*", re.ASCII)


@dataclass(frozen=True)
class Point:
    """Values of some keys, as `apply_change` takes them."""

    settings: tuple[tuple[str, Any], ...]

    @property
    def changes(self) -> tuple[str, ...]:
        """The same as arguments of ``--set``."""
        return tuple(f"{key}={_text(value)}" for key, value in self.settings)


def points(sweep: SweepFile) -> list[Point]:
    """All points, each once, in the file's order; raises Problem."""
    found = [Point(tuple({**sweep.fixed, **settings}.items())) for settings in _settings(sweep)]
    return list({point.changes: point for point in found}.values())


def samples(sweep: SweepFile) -> list[tuple[Point, Path]]:
    """Points that have each value at least once, with the place of their keys in the file."""
    if sweep.listed is not None:
        return [(Point(tuple({**sweep.fixed, **settings}.items())), ("list", number))
                for number, settings in enumerate(sweep.listed)]
    values, path = _values(sweep)
    first = {key: choices[0] for key, choices in values.items()}
    return [(Point(tuple({**sweep.fixed, **first, key: value}.items())), path)
            for key, choices in values.items() for value in choices]


def _settings(sweep: SweepFile) -> Iterator[Settings]:
    if sweep.listed is not None:
        yield from sweep.listed
    elif sweep.grid is not None:
        count = math.prod(map(len, sweep.grid.values()))
        if count > MOST_POINTS:
            raise Problem(f"{count:,} points", path=("grid",), allowed=f"at most {MOST_POINTS:,}")
        for values in product(*sweep.grid.values()):
            yield dict(zip(sweep.grid, values, strict=True))
    else:
        assert sweep.random is not None
        yield from _draw(sweep.random)


def _values(sweep: SweepFile) -> tuple[Mapping[str, Sequence[Any]], Path]:
    """Values of each key of a grid; those or the bounds of a random design."""
    if sweep.grid is not None:
        return sweep.grid, ("grid",)
    assert sweep.random is not None  # and `points` has checked its keys
    return {key: given if isinstance(given, list) else [given["low"], given["high"]]
            for key, given in sweep.random.keys.items()}, ("random", "keys")


def _draw(design: Random) -> Iterator[Settings]:
    """Draw a point after the other, so that fewer points are the first of more."""
    drawers = {key: _drawer(key, given) for key, given in design.keys.items()}
    generator = np.random.default_rng(design.seed)
    for _ in range(design.points):
        yield {key: draw(float(generator.random())) for key, draw in drawers.items()}


def _drawer(key: str, given: Any) -> Callable[[float], Any]:
    """A function from [0, 1) to a value of the key; raises Problem."""
    path = ("random", "keys", key)
    if isinstance(given, list) and given:
        return lambda share: given[int(share * len(given))]
    if not isinstance(given, dict) or not {"low", "high"} <= set(given):
        raise Problem(f"found {show(given)}", path=path, found=given, allowed="a list of values, "
                      "or {low: ..., high: ..., scale: linear or log}")
    return _between(Bounds(**given), path)


def _between(bounds: Bounds, path: Path) -> Callable[[float], Any]:
    (low, unit), (high, other) = _quantity(bounds.low, path), _quantity(bounds.high, path)
    if unit != other:
        raise Problem(f"low is in {show(unit)} and high in {show(other)}", path=path,
                      allowed="one unit for both")
    if not low < high or (bounds.scale == "log" and low <= 0):
        raise Problem(f"low is {show(bounds.low)} and high {show(bounds.high)}", path=path,
                      allowed="low below high, and above 0 for a log scale")
    whole = isinstance(bounds.low, int) and isinstance(bounds.high, int)

    def draw(share: float) -> Any:
        log = bounds.scale == "log"
        value = low * (high / low) ** share if log else low + (high - low) * share
        if whole:
            return round(value)
        value = min(max(float(f"{value:.4g}"), low), high)
        return f"{value:g}{unit}" if unit is not None else value
    return draw


def _quantity(given: Any, path: Path) -> tuple[float, str | None]:
    """Number and unit; the unit is None where the value is a number."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given), None
    match = _NUMBER.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise Problem(f"found {show(given)}", path=path, found=given,
                      allowed="a number, or a number with a unit")
    return float(match[1]), match[2]


def _text(value: Any) -> str:
    """Text that YAML reads back as the value: as it is where that works, else as JSON."""
    if isinstance(value, str):
        try:
            if parse_value(value, "").plain() == value:
                return value
        except TopologyError:
            pass
    return json.dumps(value, ensure_ascii=False)
