"""The sweep file: which topology, which keys, which values.

::

    topology: leaf-spine.yaml          # beside this file
    scenarios: [2D, ring]              # all of the topology's where not given
    set: {seed: 3}                     # what every point changes
    grid:                              # every combination, the last key fastest
      fabric.spines: [2, 4, 8]
      "hosts[0].nics[0].rate": [25Gbps, 100Gbps]
    objectives: {images_per_s: max, fabric.spines: min}

Instead of ``grid`` there may be ``list``, with the keys of each point, or ``random``, with a number
of points, a seed, and for each key the values to choose from or the bounds to draw between::

    list:
      - {fabric.spines: 2, fabric.leaves: 4}
    random:
      points: 200
      seed: 1
      keys:
        fabric.spines: [2, 4, 8]
        "hosts[0].nics[0].rate": {low: 10Gbps, high: 400Gbps, scale: log}

Keys are written as for ``--set``. An objective is a column of the result, or a key of the sweep.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sim.schema.base import Model
from sim.schema.input_errors import Path, Problem
from sim.schema.source import Source, overwritten

MOST_POINTS = 100_000
Key = Annotated[str, Field(min_length=1, max_length=200)]
Values = Annotated[list[Any], Field(min_length=1, max_length=MOST_POINTS)]
Whole = Annotated[int, Field(strict=True, ge=1, le=MOST_POINTS)]
Seed = Annotated[int, Field(strict=True, ge=0, le=2**32 - 1)]


class Bounds(Model):
    """Two numbers, or two quantities of one unit, to draw between; whole if both are."""

    low: Any
    high: Any
    scale: Literal["linear", "log"] = "linear"


class Random(Model):
    """Points drawn independently; more points of the same seed begin with the same ones."""

    points: Whole
    seed: Seed = 1
    keys: Annotated[dict[Key, Any], Field(min_length=1, max_length=64)]


class SweepFile(Model):
    """See the module's manual."""

    topology: Annotated[str, Field(min_length=1)]
    scenarios: Annotated[list[str], Field(min_length=1)] | None = None
    fidelity: Literal["flow", "packet"] = "flow"
    draws: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 0
    """Draws of the uncertain parameters for each point's intervals."""
    fixed: dict[Key, Any] = Field(alias="set", default_factory=dict, max_length=64)
    grid: Annotated[dict[Key, Values], Field(min_length=1, max_length=64)] | None = None
    listed: Annotated[list[dict[Key, Any]] | None,
                      Field(alias="list", min_length=1, max_length=MOST_POINTS)] = None
    random: Random | None = None
    objectives: dict[Key, Literal["max", "min"]] = Field(default_factory=dict, max_length=8)

    @model_validator(mode="after")
    def _one_design(self) -> "SweepFile":
        designs = {"grid": self.grid, "list": self.listed, "random": self.random}
        given = [name for name, design in designs.items() if design is not None]
        if len(given) != 1:
            raise Problem(f"{' and '.join(given) or 'no points'} in one sweep",
                          allowed="one of grid, list, random")
        for place, keys in self._keys():
            lost = overwritten([*self.fixed, *keys])
            if lost and lost[0] != lost[1]:  # a key of `set` again is meant
                raise Problem(f"{lost[0]!r} has no effect, since {lost[1]!r} comes after it and "
                              "replaces it",
                              path=(*place, lost[1]) if lost[1] in keys else ("set",),
                              allowed="one key for a value, or the whole before its parts")
        return self

    def _keys(self) -> Iterator[tuple[Path, Iterable[str]]]:
        """Keys that a point sets together, in their order, and their place."""
        if self.listed is not None:
            for number, settings in enumerate(self.listed):
                yield ("list", number), settings
        elif self.grid is not None:
            yield ("grid",), self.grid
        elif self.random is not None:
            yield ("random", "keys"), self.random.keys


def read_sweep(path: FilePath) -> tuple[SweepFile, Source]:
    """Read and check a sweep file; raises TopologyError."""
    source = Source.read(path)
    return source.validate(SweepFile), source
