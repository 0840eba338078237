"""Fit stacks jointly to the published measurements that are marked for it, and leave each out.

A case (`sim.validation.case`) marks figures with ``fits: true``; they are of the stack of their
scenario. The parameters of a stack (`FITTED`) are chosen together so that the sum of the absolute
logarithms of prediction over measurement is smallest: half of the rows come out too fast and half
too slow, and a row that the model does not understand pulls no more than any other. They stand on a
lattice of 3 % steps, which is far finer than what the rows agree on.

*Left out*, a row is predicted by the fit to all rows of other sources, since the rows of one source
share its hosts. A parameter's interval is what single sources would need: from each of them the
others' parameters are taken and fitted once more to its own rows, so that the interval says how far
hosts differ, not how well their mean is known.

The rest is ``deviation``, a random effect of the source: rows left out miss by more than the
draws of all parameters explain, and the variance that is missing (of logarithms, each source
counting once) is its own. Its interval is that of draws (`sim.answer.uncertainty`): a triangle of
this variance. Its size follows only from rows of the fit that are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import mean, median, pvariance
from typing import TYPE_CHECKING, Any

from sim.answer.scenario import Settings
from sim.answer.uncertainty import halton, unknowns
from sim.cluster.cluster import Cluster
from sim.report.numbers import percent, rounded
from sim.report.quantities import quantity
from sim.report.screen import Column, console_for, grid, show
from sim.schema.input_errors import Problem, TopologyError
from sim.schema.parameters import load_stack
from sim.validation.case import case_files, load_case
from sim.validation.predictions import in_words, predict, size_in_words

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from rich.console import Console

    from sim.validation.case import Figure
    from sim.validation.predictions import Prediction


FITTED = {
    "kernel-tcp": ("cost_per_byte", "memory_per_byte", "start_latency"),
    "tcpx": ("cost_per_message",),
    "tcpxo": ("cost_per_message",),
}
"""Parameters by stack."""
STEP = 1.03
"""Ratio of neighbouring values."""
STRIDES = (8, 4, 2, 1)
LEAST_CHANGE = 0.05
"""Change of a row's logarithm from which the row depends on a parameter."""
TOLERANCE = 0.02
"""A shipped value within this factor of the fit is not stale: less than a step of the lattice."""

DRAWS = 24
"""Draws of each row, for what the parameters explain."""
TRIANGLE = 6.0
"""Square of a triangle's half base over its variance."""

Point = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """A published figure that the fit uses."""

    case: str
    source: str
    figure: Figure
    cluster: Cluster

    @property
    def stack(self) -> str:
        """Stack of the figure's scenario."""
        return next(each.stack for each in self.cluster.topology.scenarios
                    if each.name == self.figure.scenario)


@dataclass(frozen=True)
class FittedRow:
    """A row with the predictions of the fit to all rows and of the one without its source."""

    row: Row
    fitted: float
    left_out: float

    @property
    def error(self) -> float:
        """Relative error of the fit to all rows."""
        return self.fitted / self.row.figure.value - 1.0

    @property
    def left_out_error(self) -> float:
        """Relative error of the fit that never saw the row's source."""
        return self.left_out / self.row.figure.value - 1.0


@dataclass(frozen=True)
class FittedParameter:
    """A parameter: what is shipped, what the fit gives, and what single sources would need."""

    name: str
    shipped: float
    value: float
    low: float
    high: float

    @property
    def stale(self) -> bool:
        """Whether the shipped value is not that of the fit."""
        return abs(math.log(self.shipped / self.value)) > TOLERANCE


@dataclass(frozen=True)
class Deviation:
    """Distance of one source from the next beyond what parameters explain: the interval's ends."""

    shipped: float
    """Upper end of the shipped interval; the lower one is its inverse."""
    value: float

    @property
    def stale(self) -> bool:
        """Whether the shipped end is not that of the rows left out."""
        return abs(math.log(self.shipped / self.value)) > TOLERANCE


@dataclass(frozen=True)
class PublishedFit:
    """Output of ``python -m sim.calibrate --published`` for a stack."""

    stack: str
    parameters: tuple[FittedParameter, ...]
    rows: tuple[FittedRow, ...]
    deviation: Deviation | None = None
    """None where it was not asked for, or the stack's is of another origin."""

    @property
    def stale(self) -> list[str]:
        """Names of what is shipped with another value than the fit's, behind their stack's."""
        found = [each.name for each in self.parameters if each.stale]
        if self.deviation is not None and self.deviation.stale:
            found.append("deviation")
        return [f"{self.stack}.{name}" for name in found]


def fit_published(paths: Sequence[Path] | None = None, *,
                  bounds: bool = True) -> list[PublishedFit]:
    """Fit each stack to the marked figures of these cases (all by default).

    Args:
        paths: the cases.
        bounds: also find the parameters' intervals (fits to each source alone) and the deviation.
    """
    rows = marked_rows(case_files() if paths is None else paths)
    by_stack = {stack: [row for row in rows if row.stack == stack] for stack in FITTED}
    return [_fit_stack(stack, some, bounds=bounds) for stack, some in by_stack.items() if some]


def _fit_stack(stack: str, marked: Sequence[Row], *, bounds: bool) -> PublishedFit:
    search = Search(stack, marked)
    best = search.fit(range(len(search.rows)))
    rows, alone = [], []
    for source, own in search.by_source().items():
        others = [i for i, row in enumerate(search.rows) if row.source != source]
        left_out = search.fit(others, best)
        rows += [FittedRow(search.rows[number], search.prediction(number, best),
                           search.prediction(number, left_out)) for number in own]
        if bounds:
            alone.append(search.fit(own, best, search.axes_of(own, best)))
    return PublishedFit(stack, tuple(_parameters(search, [best, *alone])), tuple(rows),
                        _deviation(stack, rows) if bounds else None)


def marked_rows(paths: Sequence[Path]) -> list[Row]:
    """Every figure marked ``fits: true``; TopologyError for one of a stack that is not fitted."""
    found = []
    for path in paths:
        case = load_case(path)
        marked = [figure for figure in case.figures if figure.fits]
        if marked:
            cluster = Cluster(case.topology)
            found += [Row(path.stem, case.source, figure, cluster) for figure in marked]
            for row in found[-len(marked):]:
                if row.stack not in FITTED:
                    raise TopologyError(str(path), Problem(
                        f"fits: true stands beside a figure of stack {row.stack}",
                        allowed=f"figures of {', '.join(FITTED)}"))
    return found


class Search:
    """Descends on a lattice of parameter values, and remembers each row's prediction at a point."""

    def __init__(self, stack: str, rows: Sequence[Row]) -> None:
        self.stack, self.rows, self.names = stack, rows, FITTED[stack]
        shipped = load_stack(stack)
        self.shipped = [float(getattr(shipped, name).value) for name in self.names]
        self.origin: Point = (0,) * len(self.names)
        self._known: dict[tuple[int, Point], float] = {}

    def values(self, point: Point) -> list[float]:
        """Parameter values at a point; the shipped ones at the origin."""
        return [value * STEP**steps for value, steps in zip(self.shipped, point, strict=True)]

    def prediction(self, number: int, point: Point) -> float:
        """The simulator's answer to a row at a point."""
        self._predict([number], point)
        return self._known[number, point]

    def _predict(self, rows: Collection[int], point: Point) -> None:
        missing = [number for number in sorted(set(rows)) if (number, point) not in self._known]
        figures = {f"{self.stack}.{name}": value
                   for name, value in zip(self.names, self.values(point), strict=True)}
        for number in missing:
            row = self.rows[number]
            self._known[number, point] = predict(row.cluster, row.figure, Settings(figures))

    def loss(self, rows: Collection[int], point: Point) -> float:
        """Sum of the rows' absolute logarithmic errors; a row may count more than once."""
        self._predict(rows, point)
        return sum(abs(math.log(self._known[number, point] / self.rows[number].figure.value))
                   for number in rows)

    def fit(self, rows: Collection[int], start: Point | None = None,
            axes: Collection[int] | None = None) -> Point:
        """Point of the lattice that fits ``rows`` best, found downhill from ``start``.

        Without arguments: from what is shipped, along all axes.
        """
        best = self.origin if start is None else start
        axes = range(len(self.names)) if axes is None else axes
        least = self.loss(rows, best)
        for stride in STRIDES:
            moved = True
            while moved:
                moved = False
                for axis in axes:
                    for change in (stride, -stride):
                        near = _moved(best, axis, change)
                        loss = self.loss(rows, near)
                        if loss < least - 1e-9:
                            best, least, moved = near, loss, True
        return best

    def axes_of(self, rows: Collection[int], point: Point) -> list[int]:
        """Axes along which a quarter of the parameter moves some row by `LEAST_CHANGE`."""
        self._predict(rows, point)
        moved = []
        for axis in range(len(self.names)):
            near = _moved(point, axis, STRIDES[0])
            self._predict(rows, near)
            if any(abs(math.log(self._known[number, near] / self._known[number, point]))
                   > LEAST_CHANGE for number in rows):
                moved.append(axis)
        return moved

    def by_source(self) -> dict[str, list[int]]:
        """Numbers of the rows of each source."""
        found: dict[str, list[int]] = {}
        for number, row in enumerate(self.rows):
            found.setdefault(row.source, []).append(number)
        return found


def _moved(point: Point, axis: int, change: int) -> Point:
    return tuple(steps + (change if i == axis else 0) for i, steps in enumerate(point))


def _parameters(search: Search, points: Sequence[Point]) -> list[FittedParameter]:
    """Each parameter at the first point, and within which bounds the others lie."""
    found = []
    for number, name in enumerate(search.names):
        values = [search.values(point)[number] for point in points]
        found.append(FittedParameter(name, search.shipped[number], values[0], min(values),
                                     max(values)))
    return found


def _deviation(stack: str, rows: Sequence[FittedRow]) -> Deviation | None:
    """Deviation of a source that the fit never saw; see the module's manual."""
    shipped = load_stack(stack).deviation
    if shipped is None or shipped.confidence != "fitted":
        return None
    by_source: dict[str, list[float]] = {}
    for row in rows:
        missing = math.log(row.left_out / row.row.figure.value) ** 2 - _explained(stack, row.row)
        by_source.setdefault(row.row.source, []).append(missing)
    variance = max(0.0, mean(mean(some) for some in by_source.values()))
    return Deviation(shipped.interval[1], math.exp(math.sqrt(TRIANGLE * variance)))


def _explained(stack: str, row: Row) -> float:
    """Variance of a row's logarithm by draws of all parameters but the deviation itself."""
    topology = row.cluster.topology
    open_ = [unknown for unknown in unknowns(topology, alone=True)
             if unknown.name != f"{stack}.deviation"]
    logs = [math.log(predict(row.cluster, row.figure, Settings(
        {unknown.name: unknown.quantile(share)
         for unknown, share in zip(open_, point.tolist(), strict=True)})))
        for point in halton(DRAWS, len(open_), topology.seed)]
    return pvariance(logs)


VERSION = 2


def print_fit(fit: PublishedFit, console: Console | None = None) -> None:
    """Print a line for each parameter, then one for each row, then the medians."""
    from rich.text import Text

    console = console_for() if console is None else console

    def column(header: str, cells: list[str], **more: Any) -> Column:
        return Column(header, [Text(cell) for cell in cells], **more)

    figures, rows = fit.parameters, fit.rows
    show(console, grid([
        column("parameter", [f"{fit.stack}.{each.name}" for each in figures], align="left"),
        column("shipped", [_short(each.name, each.shipped) for each in figures]),
        column("fitted", [_short(each.name, each.value) for each in figures]),
        column("interval", [f"{_short(each.name, each.low)}..{_short(each.name, each.high)}"
                            for each in figures]),
    ]))
    if fit.deviation is not None:
        show(console, Text(f"{fit.stack}.deviation: 1, within {1 / fit.deviation.value:.2f} to "
                           f"{fit.deviation.value:.2f} (shipped: {fit.deviation.shipped:.2f})."))
    show(console, grid([
        column("case", [row.row.case for row in rows], align="left"),
        column("row", [_words(row) for row in rows], align="left"),
        column("measured", [in_words(row.row.figure, row.row.figure.value) for row in rows]),
        column("fitted", [in_words(row.row.figure, row.fitted) for row in rows]),
        column("error", [percent(row.error, sign=True) for row in rows]),
        column("left out", [in_words(row.row.figure, row.left_out) for row in rows]),
        column("error", [percent(row.left_out_error, sign=True) for row in rows]),
    ]))
    sources = len({row.row.source for row in rows})
    show(console, Text(
        f"{len(rows)} rows of {sources} sources: median error "
        f"{_median(row.error for row in rows)}, "
        f"without the row's source {_median(row.left_out_error for row in rows)}."))


def _words(row: FittedRow) -> str:
    size = row.row.figure.size
    return f"{row.row.figure.scenario}, {size_in_words(size)}" if size else row.row.figure.scenario


def _median(errors: Any) -> str:
    return percent(median(abs(error) for error in errors), decimals=1)


def _short(name: str, value: float) -> str:
    return quantity(name, float(f"{value:.3g}"))


def fits_json(fits: Sequence[PublishedFit]) -> dict[str, Any]:
    """Return plain data for ``--json``; docs/use/calibrate.md lists every key."""
    return {"version": VERSION, "stacks": [_fit_json(fit) for fit in fits]}


def _fit_json(fit: PublishedFit) -> dict[str, Any]:
    return {
        "stack": fit.stack,
        "parameters": [{
            "name": each.name, "shipped": rounded(each.shipped), "fitted": rounded(each.value),
            "low": rounded(each.low), "high": rounded(each.high), "stale": each.stale,
        } for each in fit.parameters],
        "deviation": None if fit.deviation is None else {
            "shipped": rounded(fit.deviation.shipped), "fitted": rounded(fit.deviation.value),
            "stale": fit.deviation.stale},
        "rows": [{
            "case": row.row.case, "scenario": row.row.figure.scenario, "source": row.row.source,
            "size": row.row.figure.size, "measured": rounded(row.row.figure.value),
            "fitted": rounded(row.fitted), "error_pct": rounded(row.error * 100),
            "left_out": rounded(row.left_out), "left_out_pct": rounded(row.left_out_error * 100),
        } for row in fit.rows],
    }


def left_out(rows: Sequence[Prediction]) -> list[Prediction]:
    """Give fitted rows the prediction of the fit that never saw their source."""
    if not any(row.figure.fits for row in rows):
        return list(rows)
    found = {(row.row.case, row.row.figure): row.left_out
             for fit in fit_published(bounds=False) for row in fit.rows}
    return [row.moved_to(found[row.case, row.figure]) if row.figure.fits else row for row in rows]
