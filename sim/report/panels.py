"""The picture's panels over time: what a GPU and the network did, and how full the links were.

Colours are Okabe and Ito's, which people with any kind of colour vision can tell apart ("Color
Universal Design", 2008).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.report.table import label
from sim.report.trace import disjoint_lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from sim.records.results import ScenarioResult, Span, SpanKind

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE, GREY = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
    "#999999")
KIND_COLOURS: dict[SpanKind, str] = {
    "forward": BLUE, "backward": SKY, "update": GREEN, "selection": YELLOW, "transfer": VERMILION,
    "latency": PURPLE, "message": ORANGE, "negotiation": GREY, "fault": BLACK}
GPU_KINDS = ("forward", "backward", "update", "selection")
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
    """Name each row as shortly as tells them apart: GPUs only where their number differs."""
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
    """Draw for each row what one GPU did, and below it what the network did, on one time axis.

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
    shown = f"{row.shown_s * 1e3:.4g} ms"
    differs = abs(row.shown_s - row.step_s) > 0.005 * row.step_s
    return f"{shown} (mean {row.step_s * 1e3:.4g} ms)" if differs else shown


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
