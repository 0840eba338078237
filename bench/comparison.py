"""Speed of the stack: ``python bench/comparison.py [--json] [--only ID,ID] [--save | --show FILE]``.

Every row is held against a reference that is measured in the same run, in turn with it, and is the
median of the rounds. Throughput is payload, CRC and tag are on, two CPUs are pinned. What the rows
are, what they mean and what bounds them is in docs/speed.md. Exit code 1
when a row misses its target. Needs root, for network namespaces.

``--save`` keeps the rows in a file, in the place of those of the same name that are there;
``--show`` measures nothing and prints such a file, as README.md and docs/speed.md do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any


from bench.arms import Bench, BenchError, Sample
from bench.stack.stack_rows import ROWS, Row
from bench.store import Kept, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rich.progress import Progress
    from bench.stack.stack_rows import Group


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


def run_group(group: Group, rows: Sequence[Row], bench: Bench,
              progress: Progress) -> dict[str, dict[str, Any]]:
    """Measure what the rows of one group need, arm after arm, round after round."""
    bench = replace(bench, seconds=max(bench.seconds, *(row.least_s for row in rows)))
    with group(bench) as arms:
        wanted = [name for name in arms
                  if any(name in (row.value, row.floor, *row.also, *row.against, *row.beside)
                         for row in rows)]
        task = progress.add_task(", ".join(row.id for row in rows),
                                 total=len(wanted) * bench.rounds)
        samples: dict[str, list[Sample]] = {name: [] for name in wanted}
        for _ in range(bench.rounds):
            for name in wanted:
                samples[name].append(arms[name]())
                progress.advance(task)
    measured = {name: Measured(values) for name, values in samples.items()}
    return {row.id: judge(row, measured) for row in rows}


def judge(row: Row, measured: dict[str, Measured]) -> dict[str, Any]:
    """Make a row of the answer."""
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
    ok = ok and all(value is not None and value <= row.limits[name]
                    for name, value in further.items())
    values = [sample.value for sample in arm.samples]
    return {"id": row.id, "value": arm.value, "unit": row.unit, "reference": reference,
            "ratio": ratio, "target": row.target, "ok": ok, "what": row.what, "aim": row.aim,
            "within": row.within, "lower_is_better": row.lower, "value_is": own,
            "reference_is": best,
            "least": min(values), "most": max(values), "cpus": arm.cpus,
            "reference_cpus": measured[best].cpus if best else None,
            "floor": measured[row.floor].value if row.floor else None, "floor_is": row.floor,
            "other": measured[other].value if other else None, "other_is": other,
            "further": further, "limits": dict(row.limits)}


def parse(arguments: list[str] | None, rows: Mapping[str, Row] = ROWS,
          description: str = "Speed of the stack.") -> argparse.Namespace:
    """Read the options; wrong ones end with one sentence."""
    def positive(convert: Callable[[str], float]) -> Callable[[str], float]:
        def read(text: str) -> float:
            value = convert(text)
            if not 0 < value < 3600:
                raise argparse.ArgumentTypeError(f"{text} is not above 0 and below 3600")
            return value
        read.__name__ = convert.__name__
        return read

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print a list of rows as JSON")
    parser.add_argument("--only", default="", metavar="ID,ID", help="rows to run, or to show")
    parser.add_argument("--seconds", type=positive(float), default=1.0, help="of each measurement")
    parser.add_argument("--rounds", type=positive(int), default=5, help="measurements of each arm")
    parser.add_argument("--cpus", default="", metavar="N,N",
                        help="CPUs of sender and receiver; the first and the last unless given")
    parser.add_argument("--save", type=Kept, metavar="FILE", help="keep the rows in this file")
    parser.add_argument("--show", type=Kept, metavar="FILE", help="print rows that were kept")
    options = parser.parse_args(arguments)
    if options.show and not options.show.rows:
        parser.error(f"--show {options.show.path}: there is no such file, or it has no rows")
    known = options.show.rows if options.show else rows
    options.only = options.only.split(",") if options.only else list(known)
    for name in options.only:
        if name not in known:
            parser.error(f"there is no row {name!r}; there are {', '.join(known)}")
    usable = sorted(os.sched_getaffinity(0))
    if not options.cpus:
        options.cpus = (usable[0], usable[-1])
        return options
    try:
        first, second = (int(word) for word in options.cpus.split(","))
    except ValueError:
        parser.error(f"--cpus {options.cpus}: two numbers with a comma between, e.g. 0,1")
    if not {first, second} <= set(usable):
        parser.error(f"--cpus {options.cpus}: this process may run on {usable}")
    options.cpus = (first, second)
    return options


def measure(options: argparse.Namespace, rows: Mapping[str, Row] = ROWS) -> list[dict[str, Any]]:
    """Run the groups that the rows belong to, with a bar of progress on stderr."""
    from rich.console import Console
    from rich.progress import Progress

    bench = Bench(options.seconds, int(options.rounds), options.cpus)
    chosen = [rows[name] for name in options.only]
    groups = list(dict.fromkeys(row.group for row in chosen))
    found: dict[str, dict[str, Any]] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for group in groups:
            found |= run_group(group, [row for row in chosen if row.group is group], bench,
                               progress)
    return [found[row.id] for row in chosen if row.id in found]


def main(arguments: list[str] | None = None, table: Mapping[str, Row] = ROWS,
         description: str = "Speed of the stack.") -> int:
    """Run the rows."""
    options = parse(arguments, table, description)
    if options.show:
        show([options.show.rows[name] for name in options.only])
        return 0
    if os.geteuid():
        print("error: network namespaces need root", file=sys.stderr)
        return 2
    try:
        rows = measure(options, table)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.save:
        options.save.save(rows)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        show(rows)
    return int(not all(row["ok"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
