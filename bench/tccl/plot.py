"""Goodput over time of scenes, as one picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bench.tccl.goodput import BIN_S

if TYPE_CHECKING:
    from pathlib import Path

    from bench.tccl.goodput import Run
    from bench.tccl.scenes import Scene

PANEL_INCHES = (9.0, 2.3)


class Panel(NamedTuple):
    """A scene at one fidelity, with a run of each stack."""

    fidelity: str
    scene: Scene
    harp: Run
    tcp: Run | None = None


def plot(panels: list[Panel], path: Path) -> None:
    """Draw the panels below one another, in the format that the file's name ends in."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = PANEL_INCHES
    figure = Figure(figsize=(width, height * len(panels) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _draw(axes, panel)
    figure.savefig(path, dpi=110)


def _draw(axes: Any, panel: Panel) -> None:
    first_s = panel.scene.moments[0].at_s
    for name, run in (("HARP", panel.harp), ("kernel TCP", panel.tcp)):
        if run is None:
            continue
        shares = [bits / (run.capacity_bps * BIN_S) for bits in run.trace.bits]
        edges_ms = [1e3 * (at * BIN_S - first_s) for at in range(len(shares) + 1)]
        axes.stairs(shares, edges_ms, label=name, linewidth=1.4)
    judged = [moment for moment in panel.scene.moments if moment.what]
    ends_s = [*(moment.at_s for moment in judged[1:]), panel.scene.end_s]
    for moment, end_s in zip(judged, ends_s, strict=True):
        span_ms = [1e3 * (at_s - first_s) for at_s in (moment.at_s, end_s)]
        axes.hlines(moment.remains, *span_ms, color="gray", linestyle=":", linewidth=1)
        axes.axvline(span_ms[0], color="gray", linewidth=0.8)
        axes.annotate(moment.what.partition(";")[0], (span_ms[0], 1.36), xytext=(4, 0),
                      textcoords="offset points", va="top", fontsize=8)
    axes.set_ylim(0, 1.4)
    axes.set_xlim(-1e3 * first_s, 1e3 * (panel.scene.end_s - first_s))
    axes.set_ylabel("of both ports")
    axes.set_xlabel("ms")
    axes.set_title(f"{panel.scene.name} ({panel.fidelity})", fontsize=9, loc="left")
    axes.legend(loc="lower right", fontsize=8)
