"""The result of a sweep as a table: a line for each row of each point.

Columns: ``point`` (a number), the swept keys, those of `sim.report.export.HEADER` (``name`` is
``scenario`` here), ``error`` where the simulator refused the point, and ``pareto``, whether no
other row is better in one objective and as good in all. A key with quantities such as ``25Gbps``
has a second column, ``KEY in SI``, with plain numbers. The same sweep gives the same table, resumed
or not.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.report.export import HEADER
from sim.schema.input_errors import Problem, unknown
from sim.schema.units import COMPUTE_RATE, DURATION, PACKET_RATE, RATE, SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sim.schema.units import Unit
    from sim.sweeps.design import Point
    from sim.sweeps.study import Outcome

SUFFIXES = (".parquet", ".csv")
OF_ROWS = tuple("scenario" if name == "name" else name for name in HEADER)
_TEXTS = ("scenario", "job", "expect_kind", "expect_source", "bottleneck", "runner_up", "currency",
          "notes")
_SI = " in SI"


@dataclass(frozen=True)
class SweepTable:
    """Columns by name, all of one length."""

    columns: Mapping[str, Sequence[Any]]
    objectives: Mapping[str, str]
    """Column and ``max`` or ``min``."""

    @property
    def failed(self) -> int:
        """Number of points that the simulator refused."""
        return sum(error is not None for error in self.columns["error"])

    @property
    def valueless(self) -> list[str]:
        """Objectives that have a number in no line, such as a cost without prices."""
        return [name for name in self.objectives
                if not np.isfinite(objective_values(self.columns, name)).any()]

    def lines(self, *, pareto: bool = False) -> list[dict[str, Any]]:
        """Lines as mappings; with ``pareto`` only those of the front."""
        lines = [dict(zip(self.columns, cells, strict=True))
                 for cells in zip(*self.columns.values(), strict=True)]
        return [line for line in lines if line["pareto"]] if pareto else lines


def check_columns(points: Sequence[Point], objectives: Mapping[str, str]) -> None:
    """Raise Problem where a key has a column's name, or an objective is no column."""
    keys = {key for point in points for key, _ in point.settings}
    taken = keys & {"point", *OF_ROWS, "error", "pareto"}
    if taken:
        raise Problem(f"the key {min(taken)!r} has the name of a column of the result",
                      allowed="other keys")
    numbers = [name for name in OF_ROWS if name not in _TEXTS]
    for name in objectives:
        if name not in {*keys, *numbers}:
            raise unknown("column", name, [*keys, *numbers], ("objectives", name))


def make_table(points: Sequence[Point], outcomes: Mapping[tuple[str, ...], Outcome],
               objectives: Mapping[str, str]) -> SweepTable:
    """Lay out the outcomes (by changes) in the order of the points."""
    keys = list(dict.fromkeys(key for point in points for key, _ in point.settings))
    columns: dict[str, list[Any]] = {name: [] for name in ("point", *keys, *OF_ROWS, "error")}
    for number, point in enumerate(points):
        outcome = outcomes[point.changes]
        settings = dict(point.settings)
        for row in outcome.rows or ((None,) * len(OF_ROWS),):
            columns["point"].append(number)
            for key in keys:
                columns[key].append(settings.get(key))
            for name, cell in zip(OF_ROWS, row, strict=True):
                columns[name].append(cell)
            columns["error"].append(outcome.error)
    named: dict[str, Sequence[Any]] = {}
    for name, cells in columns.items():
        named[name] = _plain(cells) if name in keys else cells
        numbers = _in_si(cells) if name in keys else None
        if numbers is not None:
            named[name + _SI] = numbers
    named["pareto"] = _front(named, objectives)
    return SweepTable(named, dict(objectives))


def idle_keys(table: SweepTable) -> list[str]:
    """Keys whose values change no line's images/s, whatever the other keys are.

    Only lines that differ in one key alone say something about it.
    """
    names = list(table.columns)
    keys = [name for name in names[1:names.index("scenario")] if not name.endswith(_SI)]
    return [key for key in keys if _is_idle(table, key, keys)]


def _is_idle(table: SweepTable, key: str, keys: Sequence[str]) -> bool:
    others = [name for name in (*keys, "scenario", "gpus", "job") if name != key]
    rates: dict[tuple[str, ...], set[object]] = {}
    values: dict[tuple[str, ...], set[str]] = {}
    for line in table.lines():
        if line["error"] is None:
            alike = tuple(str(line[name]) for name in others)
            rates.setdefault(alike, set()).add(line["images_per_s"])
            values.setdefault(alike, set()).add(str(line[key]))
    compared = [alike for alike, found in values.items() if len(found) > 1]
    return bool(compared) and all(len(rates[alike]) == 1 for alike in compared)


def objective_values(columns: Mapping[str, Sequence[Any]], name: str) -> list[float]:
    """Numbers of an objective's column; NaN where there is none."""
    cells = columns.get(name + _SI, columns[name])
    return [float(cell) if isinstance(cell, int | float) else np.nan for cell in cells]


def csv_text(table: SweepTable) -> str:
    """The table as CSV; a cell is empty where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(zip(*table.columns.values(), strict=True))
    return text.getvalue()


def parquet_bytes(table: SweepTable, origin: Mapping[str, str]) -> bytes:
    """The table as Parquet, with ``origin`` as the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: pa.array(list(cells), _arrow_type(name, cells))
              for name, cells in table.columns.items()}
    made = pa.table(arrays).replace_schema_metadata(dict(origin))
    sink = pa.BufferOutputStream()
    pq.write_table(made, sink, compression="zstd")
    return bytes(sink.getvalue())


def check_parquet() -> None:
    """Raise Problem where the package is missing."""
    if find_spec("pyarrow") is None:
        raise Problem("a .parquet file needs the package pyarrow",
                      allowed="pip install 'harp-stack[sweep]', or a name that ends in .csv")


def _arrow_type(name: str, cells: Sequence[Any]) -> Any:
    """Type of a column, which must not depend on whether its cells happen to be empty."""
    import pyarrow as pa

    if name in ("point", "gpus"):
        return pa.int64()
    if name == "pareto":
        return pa.bool_()
    if name in _TEXTS or name == "error":
        return pa.string()
    if name in OF_ROWS or name.endswith(_SI):
        return pa.float64()
    return None if any(cell is not None for cell in cells) else pa.string()


def _plain(cells: Sequence[Any]) -> list[Any]:
    """Cells of one kind: numbers, true and false, or text."""
    given = [cell for cell in cells if cell is not None]
    if all(isinstance(cell, bool) for cell in given):
        return list(cells)
    if all(isinstance(cell, int) and not isinstance(cell, bool) for cell in given):
        return list(cells)
    if all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in given):
        return [None if cell is None else float(cell) for cell in cells]
    return [None if cell is None else str(cell) for cell in cells]


def _in_si(cells: Sequence[Any]) -> list[float | None] | None:
    """Numbers of a column of quantities of one kind, or None where it is no such column."""
    if not any(isinstance(cell, str) for cell in cells):
        return None
    columns = (_in_unit(cells, unit) for unit in (RATE, DURATION, SIZE, PACKET_RATE, COMPUTE_RATE))
    return next((column for column in columns if column is not None), None)


def _in_unit(cells: Sequence[Any], unit: Unit) -> list[float | None] | None:
    try:
        return [None if cell is None else float(unit.parse(cell)) for cell in cells]
    except Problem:
        return None


def _front(columns: Mapping[str, Sequence[Any]], objectives: Mapping[str, str]) -> list[bool]:
    """Whether each line is on the Pareto front; none is without objectives."""
    count = len(columns["point"])
    if not objectives:
        return [False] * count
    signs = [-1.0 if aim == "max" else 1.0 for aim in objectives.values()]
    costs = np.array([[sign * value for value in objective_values(columns, name)]
                      for name, sign in zip(objectives, signs, strict=True)]).T
    return [bool(one) for one in non_dominated(costs)]


def non_dominated(costs: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, Any]:
    """Mask of the rows of ``costs`` (smaller is better) that no other dominates; none with a NaN.

    The rows are visited from the smallest sum on, and each drops those that it dominates, so the
    work is rows times front.
    """
    order = np.argsort(costs.sum(axis=1), kind="stable")
    order = order[np.isfinite(costs[order]).all(axis=1)]
    front = np.zeros(len(costs), dtype=bool)
    while len(order):
        best, rest = order[0], order[1:]
        front[best] = True
        worse = (costs[rest] >= costs[best]).all(axis=1) & (costs[rest] > costs[best]).any(axis=1)
        order = rest[~worse]
    return front
