"""The picture's panels: timelines, utilisation, scaling, and causes of the intervals.

Timelines show a GPU and its network; utilisation shows the busiest links over time. The scaling
panel shows images/s over GPUs, beside the ideal and the published figures: as lines for a few
scenarios, as bars for many, or for many with a single number of GPUs. The causes are a tornado: how
far each parameter alone moves a row, the widest on top.

Colours are Okabe and Ito's ("Color Universal Design", 2008), which people with any kind of colour
vision can distinguish.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.report.answer_table import label
from sim.report.chrome_trace import disjoint_lanes
from sim.report.numbers import milliseconds, rate, rate_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from numpy.typing import NDArray

    from sim.records.results import Cause, ScenarioResult, Span, SpanKind

    Chosen = list[tuple[str, ScenarioResult, tuple[Cause, ...]]]

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE, GREY = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
    "#999999")
KIND_COLOURS: dict[SpanKind, str] = {
    "forward": BLUE, "backward": SKY, "update": GREEN, "selection": YELLOW, "transfer": VERMILION,
    "latency": PURPLE, "message": ORANGE, "negotiation": GREY, "fault": BLACK}
GPU_KINDS = ("forward", "backward", "update", "selection", "bubble", "page", "launch")
"""Kinds of spans on a GPU's own track; a bubble and a wait for pages or launches are drawn as
waiting."""
WAITING = "#e9e9e9"
GRID = "#e4e4e4"
SHADES = "YlGnBu"
MOST_LANES = 3
MOST_LOADS = 18
"""Rows of the utilisation panel, shared out evenly among the scenarios."""


@dataclass(frozen=True)
class Load:
    """One row of the utilisation panel: a resource's used share over one scenario's step."""

    name: str
    times_s: NDArray[np.float64]
    share: NDArray[np.float64]


def literal(text: str) -> str:
    """Keep matplotlib from reading ``$`` as the start of a formula."""
    return text.replace("$", r"\$")


def labels(rows: Sequence[ScenarioResult]) -> list[str]:
    """Short distinct names of rows: with the number of GPUs only if it differs."""
    if len({row.gpus for row in rows}) > 1:
        return [label(row) for row in rows]
    return [f"{row.name} ({row.job})" if row.job else row.name for row in rows]


def head(axes: Axes, title: str, handles: Sequence[Artist]) -> None:
    """Put a title and below it a one-line legend above the axes, where they cover no data."""
    axes.set_title(title, loc="left", fontsize=10.5, pad=24 if handles else 6)
    if handles:
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(handles),
                    frameon=False, fontsize=8, handlelength=1.0, handleheight=0.9,
                    columnspacing=1.0, handletextpad=0.5, borderaxespad=0.2, borderpad=0)


def draw_timelines(axes: Axes, rows: Sequence[ScenarioResult], horizon_s: float,
                   note: str = "") -> None:
    """Draw for each row the spans of one GPU, and below them those of the network.

    ``note`` stands behind the title.
    """
    from matplotlib.patches import Patch

    kinds: set[str] = set()
    names = labels(rows)
    for index, row in enumerate(rows):
        gpu, lanes = _lanes(row)
        axes.broken_barh([(0, row.shown_s * 1e3)], (index - 0.36, 0.34), facecolors=WAITING)
        _bars(axes, gpu, (index - 0.36, 0.34), row.start_s, horizon_s)
        height = 0.34 / max(1, len(lanes))
        for lane, spans in enumerate(lanes):
            _bars(axes, spans, (index + lane * height, height), row.start_s, horizon_s)
        kinds.update(span.kind for spans in (gpu, *lanes) for span in spans)
        axes.annotate(_length(row), (row.shown_s * 1e3, index), xytext=(5, 0),
                      textcoords="offset points", va="center", fontsize=8.5)
    axes.set_yticks(range(len(rows)), [literal(name) for name in names])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    _time_axis(axes, horizon_s)
    size = f" with {rows[0].gpus} GPUs" if len({row.gpus for row in rows}) == 1 else ""
    head(axes, _titled(f"One training step{size}: a GPU, and below it the network", note), [
        *(Patch(color=colour, label=kind) for kind, colour in KIND_COLOURS.items()
          if kind in kinds), Patch(color=WAITING, label="GPU waits")])


def _titled(title: str, note: str) -> str:
    return f"{title} ({note})" if note else title


def _length(row: ScenarioResult) -> str:
    """Say how long the shown step is, and the mean of all steps where that differs."""
    shown = milliseconds(row.shown_s)
    differs = abs(row.shown_s - row.step_s) > 0.005 * row.step_s
    return f"{shown} (mean {milliseconds(row.step_s)})" if differs else shown


def _lanes(row: ScenarioResult) -> tuple[list[Span], list[list[Span]]]:
    """Return the first GPU's spans, and in lanes those of its host's network."""
    gpu_track = next((span.track for span in row.spans if span.kind in GPU_KINDS), "")
    gpu = [span for span in row.spans if span.track == gpu_track and span.kind in GPU_KINDS]
    network = [span for span in row.spans if span.kind not in GPU_KINDS]
    host = gpu_track.partition("/")[0] + "/"
    near = [span for span in network if span.track.startswith(host)] or network
    # Tracks in step do the same at the same time: one bar says it for all.
    distinct = {(span.kind, span.start_s, span.end_s): span for span in near}
    return gpu, disjoint_lanes(distinct.values())[:MOST_LANES]


def _bars(axes: Axes, spans: Sequence[Span], place: tuple[float, float], origin_s: float,
          horizon_s: float) -> None:
    """Draw spans as bars at ``place`` (top, height), with a thin gap after those that are wide."""
    gap_s = horizon_s / 900  # Above a pixel at the width of the page.
    for kind, colour in KIND_COLOURS.items():
        ranges = [((span.start_s - origin_s) * 1e3, _shown_s(span, gap_s) * 1e3)
                  for span in spans if span.kind == kind]
        if ranges:
            axes.broken_barh(ranges, place, facecolors=colour)


def _shown_s(span: Span, gap_s: float) -> float:
    length = span.end_s - span.start_s
    return length - gap_s if length > 5 * gap_s else length


def _time_axis(axes: Axes, horizon_s: float) -> None:
    axes.set_xlim(0, horizon_s * 1e3 * 1.08)
    axes.set_xlabel("ms since the step began", fontsize=8.5)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def busiest(rows: Sequence[ScenarioResult]) -> list[Load]:
    """Return each scenario's busiest resources, `MOST_LOADS` in all, busiest first.

    Of resources with the same curve, such as the NICs of hosts in step, only one is shown.
    """
    loaded = [(row, row.links) for row in rows if row.links is not None][:MOST_LOADS]
    names = labels([row for row, _ in loaded])
    result: list[Load] = []
    for name, (row, links) in zip(names, loaded, strict=True):
        mean = links.share @ np.diff(links.times_s)
        chosen: list[int] = []
        for index in np.argsort(-mean, kind="stable"):
            if len(chosen) == MOST_LOADS // len(loaded) or mean[index] <= 0:
                break
            if not any(np.allclose(links.share[index], links.share[other], atol=0.02)
                       for other in chosen):
                chosen.append(int(index))
        result += [Load(f"{name}: {links.names[index]}", links.times_s - row.start_s,
                        links.share[index]) for index in chosen]
    return result


def draw_loads(axes: Axes, loads: Sequence[Load], horizon_s: float, note: str = "") -> None:
    """Draw the used share of each resource over time as shades."""
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    for index, load in enumerate(loads):
        axes.pcolormesh(load.times_s * 1e3, [index - 0.42, index + 0.42],
                        load.share[None, :], cmap=SHADES, vmin=0, vmax=1)
    axes.set_yticks(range(len(loads)), [literal(load.name) for load in loads])
    axes.set_ylim(len(loads) - 0.4, -0.6)
    _time_axis(axes, horizon_s)
    head(axes, _titled("Utilisation of the busiest resources", note), [
        Patch(color=colormaps[SHADES](share), label=f"{100 * share:.0f} %")
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)])


MOST_LINES = 6
"""With more scenarios than these, the panel has bars."""
MOST_BARS = 48
"""With more rows than these, only each scenario's largest number of GPUs gets a bar."""
LINES = ((BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (ORANGE, "v"), (PURPLE, "P"), (BLACK, "<"))


def scaling_height_inches(rows: Sequence[ScenarioResult]) -> float:
    """Return the height that the panel needs for ``rows``."""
    return 4.0 if _has_curves(rows) else 0.3 * len(_barred(rows)) + 1.1


def draw_scaling(axes: Axes, rows: Sequence[ScenarioResult]) -> None:
    """Draw rates over GPUs as lines, or as bars where lines would show little."""
    if not _has_curves(rows):
        _rate_bars(axes, _barred(rows))
        return
    ideal = _ideal(axes, rows)
    lines = _curves(axes, rows)
    published = _published(axes, [(row.gpus, row.expect.images_per_s) for row in rows
                                  if row.expect is not None])
    _axes(axes, rows)
    # The legend lists the lines from top to bottom, as the eye finds them at the right end.
    lines.sort(key=lambda line: -float(np.asarray(line.get_ydata())[-1]))
    head(axes, "Scaling", [])
    axes.legend(handles=[*ideal, *lines, *published], loc="upper left",
                bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8.5)


def _has_curves(rows: Sequence[ScenarioResult]) -> bool:
    """Whether there are few scenarios, and more than half of them have several numbers of GPUs."""
    points = Counter((row.name, row.job) for row in rows)
    several = sum(count > 1 for count in points.values())
    return len(points) <= MOST_LINES and 2 * several > len(points)


def _barred(rows: Sequence[ScenarioResult]) -> Sequence[ScenarioResult]:
    """Choose the rows that get a bar."""
    if len(rows) <= MOST_BARS:
        return rows
    largest: dict[tuple[str, str], ScenarioResult] = {}
    for row in sorted(rows, key=lambda row: row.gpus):
        largest[row.name, row.job] = row
    return [row for row in rows if largest[row.name, row.job] is row]


def _curves(axes: Axes, rows: Sequence[ScenarioResult]) -> list[Line2D]:
    curves: dict[tuple[str, str], list[ScenarioResult]] = {}
    for row in rows:
        curves.setdefault((row.name, row.job), []).append(row)
    lines: list[Line2D] = []
    for index, ((name, job), points) in enumerate(curves.items()):
        colour, marker = LINES[index]
        points.sort(key=lambda row: row.gpus)
        for row in points:
            if row.interval is not None:
                axes.vlines(row.gpus, row.interval.low_images_per_s,
                            row.interval.high_images_per_s, color=colour, linewidth=5, alpha=0.4)
        lines += axes.plot([row.gpus for row in points], [row.images_per_s for row in points],
                           color=colour, marker=marker, markersize=5, linewidth=1.4,
                           label=literal(f"{name} ({job})" if job else name))
    return lines


def _axes(axes: Axes, rows: Sequence[ScenarioResult]) -> None:
    gpus = sorted({row.gpus for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(gpus, [str(count) for count in gpus])
    axes.minorticks_off()
    rates = [row.images_per_s for row in rows]
    if min(rates) > 0 and max(rates) > 4 * min(rates):
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: rate(value))
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("GPUs", fontsize=8.5)
    axes.set_ylabel(rate_unit(rows), fontsize=8.5)


def _ideal(axes: Axes, rows: Sequence[ScenarioResult]) -> list[Line2D]:
    """Draw the one-GPU rate times GPUs, unless rows (of different jobs) disagree about it."""
    ones = [row.images_per_s / row.gpus / row.efficiency for row in rows if row.efficiency]
    if not ones or max(ones) > 1.01 * min(ones):
        return []
    ends = [min(row.gpus for row in rows), max(row.gpus for row in rows)]
    return axes.plot(ends, [ones[0] * gpus for gpus in ends], color=GREY, linestyle=":",
                     linewidth=1.6, label="ideal")


def _published(axes: Axes, points: Sequence[tuple[float, float]]) -> list[Line2D]:
    if not points:
        return []
    x, y = zip(*sorted(set(points)), strict=True)
    return axes.plot(x, y, linestyle="none", marker="D", markersize=9, markerfacecolor="none",
                     markeredgecolor=BLACK, label="published")


def _rate_bars(axes: Axes, rows: Sequence[ScenarioResult]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    axes.barh(range(len(rows)), [row.images_per_s for row in rows], color=SKY, height=0.6)
    for index, row in enumerate(rows):
        if row.interval is not None:
            axes.barh(index + 0.24, row.interval.high_images_per_s - row.interval.low_images_per_s,
                      left=row.interval.low_images_per_s, color=BLUE, height=0.12)
        if row.efficiency:
            axes.vlines(row.images_per_s / row.efficiency, index - 0.36, index + 0.36, color=GREY,
                        linewidth=1.6)
        # At the bar's foot, where neither the bar's end nor a published point can lie over it.
        axes.annotate(rate(row.images_per_s), (0, index), xytext=(5, 0),
                      textcoords="offset points", va="center", fontsize=8.5)
    published = _published(axes, [(row.expect.images_per_s, index) for index, row in enumerate(rows)
                                  if row.expect is not None])
    axes.set_yticks(range(len(rows)), [literal(name) for name in labels(rows)])
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlabel(rate_unit(rows), fontsize=8.5)
    legend = [Patch(color=SKY, label="simulated")]
    if any(row.interval for row in rows):
        legend.append(Patch(color=BLUE, label="P10 to P90"))
    if any(row.efficiency for row in rows):
        legend.append(Line2D([], [], color=GREY, linewidth=1.6, label="ideal"))  # type: ignore[arg-type]
    sizes = {row.gpus for row in rows}
    gpus = f" with {min(sizes)} GPU{'' if sizes == {1} else 's'}" if len(sizes) == 1 else ""
    head(axes, f"Throughput{gpus}", [*legend, *published])


MOST_ROWS = 8
"""Rows that are shown, those with the widest causes."""
MOST_CAUSES = 3
"""Causes of each."""


def chosen_causes(rows: Sequence[ScenarioResult]) -> Chosen:
    """Choose rows and causes, in the order of the table; none where no row has causes."""
    known = [row for row in rows if row.causes]
    widest = sorted(known, key=lambda row: -row.causes[0].width / row.images_per_s)[:MOST_ROWS]
    return [(name, row, row.causes[:MOST_CAUSES]) for name, row in zip(labels(known), known,
                                                                       strict=True)
            if any(row is each for each in widest)]


def tornado_height_inches(due: Chosen) -> float:
    """Return the height that the panel needs."""
    return 0.2 * sum(len(causes) + 0.6 for _, _, causes in due) + 1.1


def draw_tornado(axes: Axes, due: Chosen) -> None:
    """Draw a bar from the parameter's P10 to its P90, in per cent of the row's answer."""
    from matplotlib.patches import Patch

    place, places, names = 0.0, [], []
    for name, row, causes in due:
        for number, cause in enumerate(causes):
            low, high = (100 * (each / row.images_per_s - 1) for each in (cause.at_low,
                                                                        cause.at_high))
            axes.barh(place, low, color=SKY, height=0.8)
            axes.barh(place, high, color=VERMILION, height=0.8)
            places.append(place)
            names.append(literal(f"{name}: {cause.parameter}" if number == 0
                                 else cause.parameter))
            axes.annotate(f"{rate(cause.at_low)} to {rate(cause.at_high)}",
                          (max(low, high, 0), place), xytext=(4, 0), textcoords="offset points",
                          va="center", fontsize=7)
            place += 1.0
        place += 0.6
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.set_yticks(places, names)
    axes.set_ylim(place - 0.5, -0.9)
    axes.margins(x=0.12)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"% of the row's {rate_unit(row for _, row, _ in due)}", fontsize=8.5)
    head(axes, "Causes of the intervals", [Patch(color=SKY, label="parameter at its P10"),
                                           Patch(color=VERMILION, label="at its P90")])
