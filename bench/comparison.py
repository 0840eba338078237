"""Rows that compare arms: each against a reference that is measured in the same run, in turn.

A group is a place (a pair of namespaces, an emulated machine, this machine's memory) with the arms
that can be measured in it, by name. A row names its own arm and those that it is held against, of
which the best counts. A figure is the median of the rounds.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from bench.arms import Bench, Sample
from bench.rows import Mistake, Result, Row, goal
from bench.subject import BenchError, PeerError, Subject
from harp.cli.options import Number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from rich.progress import Progress

    Arms = dict[str, Callable[[], Sample]]
    Group = Callable[[Bench], AbstractContextManager[Arms]]


@dataclass(frozen=True)
class ArmRow(Row):
    """A row of arms; its function is the group."""

    value: str
    """Its own arm."""
    also: tuple[str, ...] = ()
    """Further settings of its own; the best counts, as it does of the reference."""
    against: tuple[str, ...] = ()
    """Arms of the reference."""
    target: float = field(default=1.0, kw_only=True)
    """Least ratio; without a reference the value's bound: least, or most where lower is better.
    0: no target."""
    unit: str = field(default="Gb/s", kw_only=True)
    aim: float | None = None
    within: float | None = None
    """Most that the ratio may be off 1, in place of ``target``."""
    floor: str | None = None
    """An arm that no program could beat here; it is shown and judges nothing."""
    beside: tuple[str, ...] = ()
    """Arms of other settings; the best is shown and judges nothing."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Most that the arm's further figures may be."""
    most_rounds: int | None = None
    """Most rounds, whatever ``--rounds`` says: for measurements of minutes."""
    least_s: float = 0.0
    """Least duration of a measurement, whatever ``--seconds`` says: for slow control loops."""

    def __post_init__(self) -> None:
        """Name the reference by its arms."""
        if self.against:
            more = f", best of {len(self.against)}" if len(self.against) > 1 else ""
            object.__setattr__(self, "reference", self.against[0].split(",")[0] + more)

    @property
    def goal(self) -> str:
        """The target as text."""
        return goal(self.target, lower=self.lower, within=self.within)


@dataclass(frozen=True)
class Measured:
    """The samples of one arm."""

    samples: list[Sample]

    @property
    def value(self) -> float:
        """Median."""
        return statistics.median(sample.value for sample in self.samples)

    @property
    def cpus(self) -> float:
        """Median of the CPUs that were busy."""
        return statistics.median(sample.cpus for sample in self.samples)

    def more(self, name: str) -> float | None:
        """Median of a further figure, if the arm has it."""
        values = [sample.more[name] for sample in self.samples if name in sample.more]
        return statistics.median(values) if values else None


def run_group(group: Group, rows: Sequence[ArmRow], bench: Bench,
              progress: Progress) -> dict[str, Result]:
    """Measure the arms that the rows of one group need, arm after arm, round after round."""
    bench = replace(bench, seconds=max(bench.seconds, *(row.least_s for row in rows)),
                    rounds=min(bench.rounds, *(row.most_rounds or bench.rounds for row in rows)))
    with group(bench) as arms:
        wanted = [name for name in arms
                  if any(name in (row.value, row.floor, *row.also, *row.against, *row.beside)
                         for row in rows)]
        task = progress.add_task(", ".join(row.id for row in rows),
                                 total=len(wanted) * bench.rounds)
        samples: dict[str, list[Sample]] = {name: [] for name in wanted}
        errors: dict[str, str] = {}
        for _ in range(bench.rounds):
            for name in wanted:
                try:
                    if name not in errors:
                        samples[name].append(arms[name]())
                except PeerError as error:
                    errors[name] = str(error)
                progress.advance(task)
    measured = {name: Measured(values) for name, values in samples.items() if name not in errors}
    return {row.id: judge(row, measured, errors) for row in rows}


def judge(row: ArmRow, measured: dict[str, Measured],
          errors: Mapping[str, str] | None = None) -> Result:
    """Make the result of a row. Without its peers, which have errors, it meets no target."""
    def best_of(names: Iterable[str]) -> str | None:
        return (min if row.lower else max)((name for name in names if name in measured),
                                           key=lambda name: measured[name].value, default=None)

    own = best_of((row.value, *row.also)) or row.value
    arm, best, other = measured[own], best_of(row.against), best_of(row.beside)
    reference = measured[best].value if best else None
    ratio = arm.value / reference if reference else None
    further = {name: arm.more(name) for name in row.limits}
    judged = ratio or arm.value
    ok = not row.target or (judged <= row.target if row.lower else judged >= row.target)
    if row.within is not None:
        ok = abs(judged - 1) <= row.within
    failed = {name: why for name, why in (errors or {}).items() if name in row.against}
    ok = ok and bool(ratio or not failed) and all(
        value is not None and value <= row.limits[name] for name, value in further.items())
    values = [sample.value for sample in arm.samples]
    return {"id": row.id, "value": arm.value, "unit": row.unit, "reference": reference,
            "ratio": ratio, "target": row.target, "ok": ok, "what": row.what, "aim": row.aim,
            "within": row.within, "lower_is_better": row.lower, "value_is": own,
            "reference_is": best,
            "least": min(values), "most": max(values), "cpus": arm.cpus,
            "reference_cpus": measured[best].cpus if best else None,
            "floor": measured[row.floor].value if row.floor else None, "floor_is": row.floor,
            "other": measured[other].value if other else None, "other_is": other,
            "further": further, "limits": dict(row.limits),
            **({"errors": failed} if failed else {})}


def read_cpus(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, int]:
    """Read ``N,N``, two CPUs that this process may run on: an option's callback."""
    usable = sorted(os.sched_getaffinity(0))
    if value is None:
        return usable[0], usable[-1]
    try:
        first, second = (int(word) for word in value.split(","))
    except ValueError:
        raise Mistake(f"--cpus {value}: two numbers with a comma between, e.g. 0,1") from None
    if not {first, second} <= set(usable):
        raise Mistake(f"--cpus {value}: this process may run on {usable}")
    return first, second


def measure(rows: Sequence[ArmRow], *, seconds: float, rounds: int,
            cpus: tuple[int, int]) -> Iterator[Result]:
    """Run group after group of the rows, with a bar of progress on stderr."""
    from rich.console import Console
    from rich.progress import Progress

    if os.geteuid():
        raise BenchError("network namespaces need root")
    bench = Bench(seconds, rounds, cpus)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for group in dict.fromkeys(row.function for row in rows):
            yield from run_group(group, [row for row in rows if row.function is group], bench,
                                 progress).values()


def compare(about: str | None, rows: Mapping[str, ArmRow], **more: Any) -> Subject:
    """Return the subject of a table of arms."""
    return Subject(about or "", rows, measure, [
        click.Option(["--seconds"], default=1.0, show_default=True, help="Of each measurement.",
                     type=Number(0, 3600, min_open=True)),
        click.Option(["--rounds"], default=5, show_default=True, help="Measurements of each arm.",
                     type=click.IntRange(1, 3600)),
        click.Option(["--cpus"], callback=read_cpus, metavar="N,N",
                     help="CPUs of sender and receiver. [default: the first and the last]"),
    ], **more)
