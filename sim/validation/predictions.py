"""Predictions of published figures: values, intervals, a summary, and a page with a plot.

A prediction is P50 of draws, as those of `sim.answer.uncertainty`: of every parameter that has an
interval, of what is unknown of connections, of the values that the case leaves open, and of the
seed of source ports; P10 and P90 lie around it. `sim.validation.coverage` moves and widens them by
what other sources miss by. A `Summary` has medians, shares and coverage. Rows are shown in a table
on the screen, and in a page of the docs with its plot.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from hashlib import blake2b
from statistics import mean, median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.cli.io import write_bytes, write_text
from harp.provenance import dated
from sim.answer.collective_bench import measure
from sim.answer.hidden import uncover
from sim.answer.scenario import Settings, run_scenario
from sim.answer.uncertainty import DRAWS, choose_draws
from sim.cluster.cluster import Cluster
from sim.report.numbers import percent
from sim.report.screen import grid, show, text_column
from sim.sweeps.executor import each_answer
from sim.validation.case import load_case, load_published

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from sim.validation.case import Case, Figure


TAIL = 0.1
"""Share of the draws below the lower, and above the upper end of an interval."""
TIMES = ("step", "time")
"""Quantities that are times; all others are speeds."""


@dataclass(frozen=True)
class Prediction:
    """A published figure and what the simulator says to it, in the figure's own quantity."""

    case: str
    source: str
    number: int
    """Number of the figure in its case."""
    figure: Figure
    value: float
    """P50; without draws, as `at_values`."""
    low: float
    high: float
    at_values: float
    """The answer with every parameter at its value."""
    case_note: str = ""
    case_apart: str = ""

    @property
    def name(self) -> str:
        """The row in a few words."""
        size = f", {size_in_words(self.figure.size)}" if self.figure.size else ""
        gpus = f", {self.figure.gpus} GPUs" if self.figure.gpus else ""
        return f"{self.case}: {self.figure.scenario}{size}{gpus}"

    @property
    def note(self) -> str:
        """Why it misses, as the case says."""
        return self.figure.note or self.case_note

    @property
    def apart(self) -> str:
        """Words of the source that call the figure too low, or the cluster wrongly set up."""
        return self.figure.apart or self.case_apart

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.value / self.figure.value - 1.0

    @property
    def covered(self) -> bool:
        """Whether P10 to P90 holds the published value."""
        return self.low <= self.figure.value <= self.high

    @property
    def too_fast(self) -> bool:
        """Whether the prediction is faster than what was published."""
        return (self.error > 0) != (self.figure.quantity in TIMES)

    def moved_to(self, at_values: float) -> Prediction:
        """The row with another answer at the parameters' values, and all else moved along."""
        by = at_values / self.at_values
        return replace(self, value=self.value * by, low=self.low * by, high=self.high * by,
                       at_values=at_values)


def predict(cluster: Cluster, figure: Figure, settings: Settings | None = None) -> float:
    """Simulate the quantity of a figure on its case's cluster."""
    settings = settings or Settings()
    topology = cluster.topology
    scenario = next(each for each in topology.scenarios if each.name == figure.scenario)
    if figure.size is None:
        gpus = figure.gpus or topology.gpu_count
        result = run_scenario(cluster, scenario, gpus, settings)[0]
        return result.step_s if figure.quantity == "step" else result.images_per_s
    default = scenario.allreduce if figure.collective == "allreduce" else figure.collective
    algorithm = figure.algorithm or default
    row = measure(cluster, figure.collective, [figure.size], scenario=scenario, settings=settings,
                  algorithms=[algorithm], chosen=figure.protocol is None).rows[0]
    return {"time": row.time_s, "busbw": row.busbw * 8, "algbw": row.algbw * 8}[figure.quantity]


def predict_files(paths: Sequence[Path], draws: int = DRAWS, workers: int | None = None,
                  dask: str | None = None) -> list[Prediction]:
    """Predict every figure of these cases, by the executor of `sim.sweeps`."""
    files = [_File(number, path, path.read_bytes()) for number, path in enumerate(paths)]
    tasks = [(f"validate-{draws}-{file.number}-{blake2b(file.data).hexdigest()}", file)
             for file in files]
    found = dict(each_answer(_predict_file, draws, tasks, workers, dask))
    return [row for file in files for row in found[file.number]]


class _File(NamedTuple):
    """A case's or topology's file, as it goes to a worker that may be elsewhere."""

    number: int
    path: Path
    data: bytes


def _predict_file(draws: int, file: _File) -> tuple[int, list[Prediction]]:
    return file.number, [row for case in load_published(file.path, file.data)
                         for row in _predict_case(draws, file, case)]


def _predict_case(draws: int, file: _File, case: Case) -> list[Prediction]:
    cluster = Cluster(case.topology)
    at_values = [predict(cluster, figure) for figure in case.figures]
    spread = np.array(_draws(file, case, draws) if draws else [at_values])
    low, middle, high = np.quantile(spread, (TAIL, 0.5, 1.0 - TAIL), axis=0).tolist()
    return [Prediction(file.path.stem, case.source, number, *row, case.note, case.apart)
            for number, row in enumerate(zip(case.figures, middle, low, high, at_values,
                                             strict=True))]


def _draws(file: _File, case: Case, draws: int) -> list[list[float]]:
    """Each draw's predictions of all figures."""
    chance = random.Random(file.path.stem)
    found = []
    for draw in choose_draws(case.topology, draws, alone=True):
        changes = {key: chance.choice(values) for key, values in case.open.items()}
        drawn = load_case(file.path, changes, file.data) if changes else case
        cluster = uncover(Cluster(drawn.topology), draw.hidden)
        settings = Settings(draw.figures, seed=draw.seed)
        found.append([predict(cluster, figure, settings) for figure in drawn.figures])
    return found


def size_in_words(size: int) -> str:
    """Write a size with the largest unit that divides it."""
    for unit, scale in (("GiB", 1 << 30), ("GB", 10**9), ("MiB", 1 << 20), ("MB", 10**6),
                        ("KiB", 1 << 10), ("kB", 10**3)):
        if size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def in_words(figure: Figure, value: float) -> str:
    """Write a value of the figure's quantity, as its source would."""
    if figure.quantity == "samples_per_s":
        return f"{value:.4g}/s"
    if figure.quantity in ("step", "time"):
        return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"
    return f"{value / 8e9:.3g} GB/s"


NEAR = 0.25
"""Relative error above which a row misses."""
MEDIAN_TARGET, NEAR_TARGET, COVERED_TARGET = 0.10, 0.90, (0.75, 0.90)
"""Targets: the median error, the share of rows that are near, the share covered."""


@dataclass(frozen=True)
class Summary:
    """Accuracy over rows that nothing was fitted to, or that were left out of the fit."""

    rows: int
    sources: int
    median: float
    """Median of the absolute relative error."""
    near: float
    """Share of rows within `NEAR`."""
    covered: float | None
    """Share of rows whose P10 to P90 holds the published value."""
    by_source: float | None = None
    """The same, each source counting once."""
    too_fast: float = 0.0
    """Share of rows that are predicted faster than published."""

    @classmethod
    def of(cls, rows: Sequence[Prediction], *, covered: bool = True) -> Summary | None:
        """Summarise rows; None where there are none."""
        if not rows:
            return None
        errors = [abs(row.error) for row in rows]
        by_source: dict[str, list[bool]] = {}
        for row in rows:
            by_source.setdefault(row.source, []).append(row.covered)
        return cls(len(rows), len(by_source), median(errors),
                   sum(error <= NEAR for error in errors) / len(rows),
                   mean(row.covered for row in rows) if covered else None,
                   mean(mean(held) for held in by_source.values()) if covered else None,
                   mean(row.too_fast for row in rows))


def missed(row: Prediction) -> bool:
    """Whether the page shows a row off by `NEAR` or more, and so owes an explanation."""
    return round(abs(row.error), 2) >= NEAR


LEFT_OUT = {True: "left out of", False: "in"}
LEAST, MOST = 0.2, 5.0
"""Ends of the plot: prediction over measurement."""

INTRODUCTION = """\
# Held against published measurements

Made by `python -m sim.validate published --page docs/results/validation.md`; do not edit. Every
case in `sim/validation/cases` and every published row of `topologies/` is simulated with draws of
every uncertain parameter and of what the source leaves out. P50 is the prediction. P10, P50 and P90
move by what the rows of *all other* sources miss them by (a margin for training and one for
collectives, `sim/answer/margins.py`): no prediction and no interval here knows its own source.
`kernel-tcp`, `tcpx` and `tcpxo` are fitted to the rows marked *left out*; the prediction of such a
row comes from the fit to all other sources (`python -m sim.calibrate --published`). No other row
was used for any fit; the shipped margins, which a new cluster gets, are those of all rows.

To add a case, copy a file of `sim/validation/cases`, give the cluster, the figures and their
source, and run the command: a row that is off by more than a quarter needs a `note` with a reason.
Where the source itself says that a figure is too low for its cluster, or that the cluster was not
set up right, `apart` quotes it: the row counts in a line of its own, and in no margin, whether the
prediction is near it or not.

Other pages compare the fidelities: [fidelities.md](fidelities.md) (flow and packet),
[lab-validation.md](lab-validation.md) (packet and real kernels), and
[packet-published.md](packet-published.md) (packet, closed forms and others' results); ASTRA-sim's
published microbenchmarks stand beside the same traces here in
[traces.md](../use/traces.md#beside-astra-sim).
"""

REMARKS = """\
## What it says, and what it misses

Of figures whose source was not used, four in five lie between P10 and P90, training and collectives
alike; the rest are named below. The margin covers what intervals cannot know of a new cluster: what
rows of other sources miss by, in the units of their logarithms.

Training follows from the published speed of one GPU, and from what is lost beside it. Where eight
GPUs train in a host, 3 % are lost to one another (NVIDIA's tables of its own hosts, which are no
case here), and up to a sixth in a single one of them. How much of the network is hidden decides the
rest, and clusters differ from nothing (averaging after the backward pass, as DLPerf's BERT in
PyTorch) to nearly all (Horovod's own benchmark over RDMA): `overlap` is drawn from all of it. Old
frameworks on hosts without NVLink lose a fifth to a third before any network; threads and input
take it, and no key has them.

Mixtures of experts in Megatron wait for the host where tokens are few (`framework: megatron`):
before launches were counted, five such rows were 1.7 to 4.2 times too fast. Three still miss: the
recipe of two computes two micro-batches by turns, and the container of the third is half as fast as
those before and after it. DeepSeek's and gpt-oss's rows there miss by what the GPU does.

Collectives of 128 MiB and more follow from four things: the NIC, the threads, the sockets and the
memory of the host. One figure for memory carries from hosts of V100 (48 Gb/s each way) to hosts of
H100 (120). At small and middling sizes one proxy thread handles the messages of all channels: 5 us
for each of them gives a ring of 4 MiB over 16 channels within a tenth, and short messages leave
sockets idle. The helper threads of a connection, and their cores, are often unknown and
move answers two- to fourfold: where a VPC's driver is not given, each of NCCL's three defaults is
drawn, and of two processes one in three has all its threads on a core. A gist of 2019 shows it: at
8 MiB 1.06 GB/s, as one core moves, where four helpers move 3.6 and the same author's later table
has 3.9. TCP's own start and buffers are no cause there: connections of a benchmark never rest for
0.2 s, ten segments are a window of 25 Gb/s after five round trips, and 3 MiB a socket let 250 Gb/s
through in 0.1 ms. They count between regions. The cost of a byte for a thread and the time of a hop
differ between hosts by a factor of two and three, and one figure stands for all.

Below a MiB it is hops and the launch of a kernel: 10 us on most hosts, 40 on some, which no source
explains. LL saves a third to a half of RDMA's hop. A hop of EFA takes 20 us on some instances
(g7e, p6: `efa-v3`) and 60 on others (p3dn, p4d), which have P5's figure. GPUDirect-TCPX and TCPXO
pay for messages, not for bytes: each has one cost of a message, fitted to two tables, which for
TCPXO contradict each other threefold.

Trees through whole hosts stay at what NCCL's own table gives them, a ceiling of each channel and a
share of it up to 256 MiB; NCCL 2.7 reached half of that. Hosts without NVLink stay at what their
bridges and the link between their sockets carry. Where a source does not name its network, or
calls its figure an anomaly itself, only the interval can be right; where it says in words that the
figure is too low for its cluster, the row is listed apart below.

`docs/inside/simulator.md` says where the spread of P10 to P90 comes from.
"""

FIRST = """\
## Figures that nobody here had used

These were predicted once with the defaults of their day and then put into the table, whatever came
out; cases keep what was said then (`first`), as speeds over publication. Mechanisms
that were built afterwards may have been found by them, so only these lines are blind.

"""


def print_rows(rows: Sequence[Prediction], console: Console, *, covered: bool,
               refit: bool) -> None:
    """Print a line a row, and the summary; ``refit`` where fitted rows were left out."""
    from rich.text import Text

    fitted = "left out" if refit else "fitted"
    show(console, grid([
        text_column("case", [row.case for row in rows], align="left", folds=True),
        text_column("row", [_row_words(row) for row in rows], align="left", folds=True),
        text_column("published", [in_words(row.figure, row.figure.value) for row in rows]),
        text_column("predicted", [in_words(row.figure, row.value) for row in rows]),
        text_column("P10", [in_words(row.figure, row.low) for row in rows], drop=1),
        text_column("P90", [in_words(row.figure, row.high) for row in rows], drop=1),
        text_column("error", [percent(row.error, sign=True) for row in rows]),
        text_column("fit", [_mark(row, fitted) for row in rows], align="left"),
    ]))
    for line in summary_lines(rows, covered=covered, refit=refit):
        show(console, Text(line))


def _mark(row: Prediction, fitted: str = "left out") -> str:
    """Say why a row does not count; empty where it does."""
    return "apart" if row.apart else fitted if row.figure.fits else ""


def _row_words(row: Prediction) -> str:
    parts = [row.figure.scenario]
    if row.figure.size:
        parts.append(size_in_words(row.figure.size))
    if row.figure.collective != "allreduce":
        parts.append(row.figure.collective)
    if row.figure.gpus:
        parts.append(f"{row.figure.gpus} GPUs")
    return ", ".join(parts)


def summary_lines(rows: Sequence[Prediction], *, covered: bool = True,
                  refit: bool = True) -> list[str]:
    """Say in sentences how good the predictions are, beside the targets."""
    free = [row for row in rows if not row.figure.fits and not row.apart]
    groups = {"rows that nothing was fitted to": free,
              "of them training": [row for row in free if row.figure.size is None],
              "of them collectives": [row for row in free if row.figure.size is not None],
              f"rows {LEFT_OUT[refit]} the fit": [row for row in rows if row.figure.fits],
              "rows listed apart": [row for row in rows if row.apart],
              "rows in all": list(rows)}
    lines = []
    for what, some in groups.items():
        summary = Summary.of(some, covered=covered)
        if summary is None:
            continue
        line = (f"{summary.rows} {what}, from {summary.sources} sources: median error "
                f"{percent(summary.median, decimals=1)} (target {percent(MEDIAN_TARGET)}), "
                f"{percent(summary.near)} within {percent(NEAR)} (target {percent(NEAR_TARGET)})")
        line += f"; {percent(summary.too_fast)} too fast"
        if summary.covered is not None and summary.by_source is not None:
            low, high = COVERED_TARGET
            line += (f"; P10 to P90 hold {percent(summary.covered)} of them (target "
                     f"{percent(low)} to {percent(high)}), {percent(summary.by_source)} where each "
                     "source counts once")
        lines.append(f"{line}.")
    return lines


def first_lines(rows: Sequence[Prediction]) -> list[str]:
    """Say how good predictions of figures were before anybody here had used them."""
    lines = []
    for what, sized in (("training", False), ("collectives", True)):
        some = [(row.source, row.figure.first) for row in rows
                if row.figure.first is not None and (row.figure.size is not None) == sized]
        if not some:
            continue
        ratios = [first for _, first in some if first is not None]
        held = mean(low <= 1 <= high for _, low, high in ratios)
        lines.append(
            f"{len(some)} of {what}, from {len({source for source, _ in some})} sources: median "
            f"error {percent(median(abs(ratio - 1) for ratio, _, _ in ratios), decimals=1)}; "
            f"{percent(mean(ratio > 1 for ratio, _, _ in ratios))} too fast; P10 to P90 held "
            f"{percent(held)} of them.")
    return lines


def write_page(rows: Sequence[Prediction], path: Path) -> None:
    """Write the page, whose date asks git for changed files, and then its plot beside it."""
    plot = path.with_suffix(".png")
    write_text(str(path), page(rows, plot.name))
    write_bytes(str(plot), draw(rows))


def page(rows: Sequence[Prediction], plot: str) -> str:
    """Return the page's text."""
    parts = [INTRODUCTION, dated(measured=False),
             "".join(f"- {line}\n" for line in summary_lines(rows)),
             f"![Prediction over measurement of every row]({plot})\n", _table(rows)]
    parts.append(REMARKS)
    first = first_lines(rows)
    if first:
        parts.append(FIRST + "".join(f"- {line}\n" for line in first))
    misses = [row for row in rows if missed(row)]
    if misses:
        parts.append("## Why rows miss\n\n" + "".join(
            f"- {row.name} ({percent(row.error, sign=True)}): {row.note or 'not known'}.\n"
            for row in misses))
    parts += _apart_lines(rows)
    sources: dict[str, list[str]] = {}
    for row in rows:
        sources.setdefault(row.source, []).append(f"`{row.case}`")
    parts.append("## Sources\n\n" + "".join(
        f"- {source}: {', '.join(dict.fromkeys(cases))}\n" for source, cases in sources.items()))
    return "\n".join(parts)


def _apart_lines(rows: Sequence[Prediction]) -> list[str]:
    """The section with what sources say of rows that are listed apart."""
    words: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.apart:
            words.setdefault((row.source, row.apart), []).append(row.name)
    if not words:
        return []
    return ["## Rows listed apart\n\n" + "".join(
        f"- {', '.join(names)}: {said} ({source}).\n"
        for (source, said), names in words.items())]


def _table(rows: Sequence[Prediction]) -> str:
    lines = ["| Case | Row | Published | Predicted | P10 to P90 | Error | |",
             "|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = [f"`{row.case}`", _row_words(row), in_words(row.figure, row.figure.value),
                 in_words(row.figure, row.value),
                 f"{in_words(row.figure, row.low)} to {in_words(row.figure, row.high)}",
                 percent(row.error, sign=True), _mark(row)]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def marks(row: Prediction) -> list[tuple[float, str]]:
    """Give where a row has a mark and which: its value, and each end of the plot that cuts its bar.

    A value off the scale lies at the end that it passes, which is marked once.
    """
    published = row.figure.value
    ends = [(end, mark) for end, mark, cut in (
        (LEAST, "<", min(row.low, row.value) / published < LEAST),
        (MOST, ">", max(row.high, row.value) / published > MOST)) if cut]
    ratio = row.value / published
    return [(ratio, "o"), *ends] if LEAST <= ratio <= MOST else ends


def draw(rows: Sequence[Prediction]) -> bytes:
    """Draw prediction over measurement of every row with P10 to P90; returns a PNG."""
    import io

    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(9, 0.17 * len(rows) + 1.2), layout="constrained")
    axes = canvas.add_subplot()
    for place, row in enumerate(reversed(rows)):
        published = row.figure.value
        colour = "tab:blue" if not row.figure.fits else "tab:orange"
        axes.plot([row.low / published, row.high / published], [place, place], color=colour,
                  alpha=0.4, linewidth=4, solid_capstyle="butt")
        for at, marker in marks(row):
            axes.plot(at, place, marker, color=colour, markersize=4, clip_on=False)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.axvspan(1 / (1 + NEAR), 1 + NEAR, color="grey", alpha=0.15)
    axes.set_xscale("log")
    ticks = [0.25, 0.5, 0.8, 1, 1.25, 2, 4]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlim(LEAST, MOST)
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)], fontsize=6)
    axes.set_ylim(-1, len(rows))
    axes.set_xlabel("prediction / measurement, with P10 to P90 "
                    "(orange: left out of the fit; > is off the scale)")
    picture = io.BytesIO()
    canvas.savefig(picture, format="png", dpi=110)
    return picture.getvalue()
