"""Results of a search of layouts, as a table and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.report.numbers import percent, rate
from sim.report.screen import console_for, grid, show, text_column

if TYPE_CHECKING:
    from rich.console import Console

    from sim.report.screen import Column
    from sim.sweeps.layouts import Search, Tried

VERSION = 1


def print_search(found: Search, title: str, *, console: Console | None = None) -> None:
    """Print a line for each layout of the front, and what was left out."""
    from rich.text import Text

    console = console_for() if console is None else console
    show(console, Text(f"{title}: {found.samples:,} samples a step", style="bold"))
    if found.front:
        show(console, grid(_columns(found)))
        best = found.front[0].choice
        keys = "".join(f" --set workload.{key}={value}" for key, value in best.workload.items())
        own = ", ".join(f"{key}: {flow(value)}" for key, value in best.scenario.items())
        show(console, Text(f"The fastest: {own}, {keys.strip()}"))
    refused = f", {found.refused:,} of them refused" if found.refused else ""
    text = (f"{found.tried + found.refused:,} of {found.of:,} layouts that fit were simulated"
            f"{refused}; ")
    text += (f"{found.open:,} more might change the front: --budget raises what may be spent."
             if found.open else "no other one can be on this front.")
    show(console, Text(text, style="dim"))


def flow(value: Any) -> str:
    """A mapping as YAML writes it in a line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(inner)}" for key, inner in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _columns(found: Search) -> list[Column]:
    rows = found.front
    text = any(each.row["tokens_per_s"] for each in rows)
    speed = "tokens_per_s" if text else "images_per_s"
    return [
        text_column("layout", (each.choice.text for each in rows), align="left", folds=True),
        text_column("micro-\nsteps", (f"{each.choice.accumulation} of {each.choice.batch}"
                                      for each in rows)),
        text_column("recom-\npute", (each.choice.recompute for each in rows), align="left"),
        text_column("GPU\nGiB", (f"{each.choice.memory / 2**30:.1f}" for each in rows)),
        text_column("tokens/s" if text else "images/s", (rate(each.row[speed]) for each in rows)),
        text_column("MFU", ("" if each.row["mfu"] is None else percent(each.row["mfu"])
                            for each in rows), drop=2),
        text_column("step\nms", (f"{each.row['step_ms']:.1f}" for each in rows), drop=1),
        text_column("limited by", (each.row["bottleneck"] or "" for each in rows), drop=3,
                    align="left")]


def document(found: Search, topology: str, scenario: str) -> dict[str, Any]:
    """The same for programs; `parallel`, `offload` and `workload` are keys of a topology file."""
    return {"version": VERSION, "topology": topology, "scenario": scenario,
            "samples": found.samples, "layouts": found.of, "simulated": found.tried,
            "refused": found.refused, "open": found.open,
            "front": [_line(each) for each in found.front]}


def _line(each: Tried) -> dict[str, Any]:
    return each.choice.scenario | {
            "workload": each.choice.workload, "memory_bytes": each.choice.memory} | {
        key: each.row[key] for key in ("images_per_s", "tokens_per_s", "mfu", "step_ms",
                                       "bottleneck")}
