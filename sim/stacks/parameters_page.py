"""Write docs/use/parameters.md: every shipped parameter with its interval and its source.

Run ``python -m sim.stacks.parameters_page > docs/use/parameters.md`` after a change to a set; a
test compares the page with the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

SETS = Path(__file__).resolve().parent.parent

INTRODUCTION = """\
# Parameters

Every figure that the simulator takes on trust: its value, the interval in which it may lie, how it
is known, and from where. Made by `python -m sim.stacks.parameters_page > docs/use/parameters.md`
from `sim/stacks/*.yaml` and `sim/frameworks/*.yaml`; change it there, or override single figures in
a topology file under `stacks:` or `frameworks:`.

*Measured* is measured by this project, *published* by others, *fitted* chosen so that an answer
agrees with a published table, *assumed* a guess. An answer's interval comes from these intervals.
"""

MEANINGS = {
    "stacks": {
        "cost_per_byte": "CPU time per byte on one core",
        "cost_per_packet": "CPU time per packet",
        "cost_per_message": "time per message, i.e. per transfer of one step of a collective",
        "start_latency": "one way, per message, both hosts together",
        "flow_rate": "ceiling of one flow or socket",
        "threads": "threads of a process that move its bytes, each at most a core",
        "memory_per_byte": "bytes that pass a host's memory for each byte sent or received",
        "cores": "cores of a host that all its processes together get; all where not given",
        "headers": "bytes per packet on the wire beyond the payload, layers 1 to 4",
        "deviation": "factor on all of it, the difference between clusters; drawn only",
        "launch": "of a collective that runs alone: launch and end of its kernel",
    },
    "frameworks": {
        "per_tensor": "serial coordination per collective launched",
        "per_rank": "what this coordination takes besides for each rank",
        "step_overhead": "per step, whenever more than one GPU takes part",
        "overlap": "share of the backward pass in which communication can run",
        "slowdown": "factor on the backward pass while a collective runs beside it",
        "jitter": "standard deviation of a rank's compute time; a step waits for the slowest rank",
        "contention": "share of time that compute takes longer where several GPUs of a host train",
        "scatter_per_element": "GPU time per received element of top-k that is added",
        "selection_per_element": "GPU time per gradient element that top-k examines",
        "cast_per_element": "GPU time per element for a cast between fp32 and fp16",
        "copy_per_element": "time of the backward pass per gradient element for copies into and "
                            "out of its bucket; none where not given",
        "kernel_delay": "share of a collective's own kernels that delays the backward "
                        "pass; all where not given",
        "launch_per_layer": "of the host for a layer's kernels in a pass, which a shorter pass "
                            "waits for; none where not given",
        "launch_per_product": "the same of a matrix product of one expert",
    },
}


def page() -> str:
    """Return the text of docs/use/parameters.md."""
    parts = [INTRODUCTION]
    for kind, title in (("stacks", "Host stacks"), ("frameworks", "Frameworks")):
        parts.append(f"## {title}\n")
        parts.append("".join(f"- `{name}`: {text}\n" for name, text in MEANINGS[kind].items()))
        parts += [_section(path) for path in sorted((SETS / kind).glob("*.yaml"))]
    return "\n".join(parts)


def _section(path: Path) -> str:
    given: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    base = given.pop("base", None)
    lines = [f"### {path.stem}\n", f"{given.pop('description')}.\n"]
    if base:
        lines.append(f"All other parameters are those of [{base}](#{base}).\n")
    if given:
        lines += ["| Parameter | Value | Interval | Confidence | Source |", "|---|---|---|---|---|"]
        lines += [_row(name, figure) for name, figure in given.items()]
        lines.append("")
    return "\n".join(lines)


def _row(name: str, figure: dict[str, Any]) -> str:
    value = figure["value"]
    interval = f"{figure['low']} to {figure['high']}" if "low" in figure else ""
    source = " ".join(figure["source"].split()).replace("|", r"\|")
    return f"| `{name}` | {value} | {interval} | {figure['confidence']} | {source} |"


if __name__ == "__main__":
    print(page(), end="")
