"""Two ports and faults: HARP and kernel TCP, at all fidelities.

Two hosts have a port each at two ToRs. Data goes one way without end, by one HARP connection over
both ports or by two flows of kernel TCP. Ports are hashed, degraded, pulled and put back, and a
dozen faults strike: a fluid (``flow``, which knows some of the faults), packets in virtual time
(``packet``), and the real stack between namespaces (``lab``, root; medians of several runs).

A line shows the target, when HARP noticed (it retransmitted, or traffic was back), when goodput was
back at the target to stay, in bins of 10 ms, the share of the remaining capacity from then on, and
the bytes that never arrived. The table of features follows, with rings over hashed and planned
paths (features.py). All of it takes eight minutes, most of them in the lab; ``--only features``
runs no scenes. docs/results/tccl.md has the definitions.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.rows import Row, by_id
from bench.subject import BenchError, Subject
from bench.tccl.features import FEATURES, feature, table
from bench.tccl.fluid import run_flow
from bench.tccl.judge import HEADER, Outcome, judge, line
from bench.tccl.packets import run_packet
from bench.tccl.plot import Panel, plot
from bench.tccl.scenes import FAULTS, NCCL, TWO_PORTS
from lab.wiring import why_unusable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.rows import Result
    from bench.tccl.goodput import Run
    from bench.tccl.scenes import Scene

SCENES = (*TWO_PORTS, *NCCL, *FAULTS)
FIDELITIES = ("flow", "packet", "lab")
FEATURE = "features: "


def run_scene(fidelity: str, scene: Scene, stack: str, runs: int) -> list[Run]:
    """Run a scene some times; a simulation gives the same each time."""
    if fidelity == "flow":
        return [run_flow(scene)]
    if fidelity == "packet":
        return [run_packet(scene, stack)]
    if scene in NCCL:
        from bench.tccl.nccl_client import run_nccl
        return [run_nccl(scene, stack) for _ in range(runs)]
    from bench.tccl.real_stack import run_lab
    return [run_lab(scene, stack) for _ in range(runs)]


def has_scene(fidelity: str, scene: Scene) -> bool:
    """Whether a fidelity can play a scene."""
    return fidelity == "lab" or (scene.fluid if fidelity == "flow" else scene not in NCCL)


def compare(scene: Scene, fidelity: str, runs: int) -> tuple[list[Outcome], Panel]:
    """HARP and kernel TCP in one scene."""
    harp = run_scene(fidelity, scene, "harp", runs)
    tcp = run_scene(fidelity, scene, scene.tcp, runs) if fidelity != "flow" else []
    return judge(fidelity, scene, harp, tcp), Panel(fidelity, scene, harp[0], *tcp[:1])


def measure(rows: Sequence[Row], fidelity: Sequence[str], runs: int, picture: Path | None, *,
            ends: bool | None) -> Iterator[Result]:
    """Play scenes at fidelities, then measure features."""
    chosen = fidelity or FIDELITIES
    if "lab" in chosen and (why := why_unusable()):
        raise BenchError(f"fidelity lab {why}; --fidelity packet does not")
    outcomes: list[Outcome] = []
    panels: list[Panel] = []
    for row in rows:
        for each in chosen:
            if row.id in SCENES_BY_NAME and has_scene(each, SCENES_BY_NAME[row.id]):
                made, panel = row.function(each, runs)
                outcomes += made
                panels.append(panel)
                yield from (outcome.to_json() for outcome in made)
    if picture:
        plot(panels, picture)
    last = [row for row in (ROWS.values() if ends else rows) if row.id.startswith(FEATURE)]
    for row in [] if ends is False else last:
        figures = {each: row.function(each, [one for one in outcomes if one.fidelity == each])
                   for each in chosen}
        yield {"id": row.id, "reference": row.reference, "figures": figures, "ok": True}


def footer(results: Sequence[Result]) -> str:
    """The table of features."""
    features = [result for result in results if "figures" in result]
    if not features:
        return ""
    fidelities = [one for one in FIDELITIES if any(one in row["figures"] for row in features)]
    made = table([(row["id"].removeprefix(FEATURE), row["reference"], row["figures"])
                  for row in features], fidelities)
    return made if len(features) == len(results) else f"\n{made}"


def _row(scene: Scene) -> Row:
    judged = [moment for moment in scene.moments if moment.what]
    return Row(scene.name, "; ".join(moment.what for moment in judged), partial(compare, scene),
               reference="kernel TCP", target="; ".join(
                   f"{moment.target:.2f} in {moment.within_s * 1e3:.0f} ms" for moment in judged))


SCENES_BY_NAME = {scene.name: scene for scene in SCENES}
ROWS = by_id((*map(_row, SCENES), *(
    Row(f"{FEATURE}{name}", "the reference's time or share by HARP's", partial(feature, name),
        reference=reference) for name, (reference, _) in FEATURES.items())))
SUBJECT = Subject(__doc__ or "", ROWS, measure, [
    click.Option(["--fidelity"], type=click.Choice(FIDELITIES), multiple=True,
                 help="Default: all."),
    click.Option(["--runs"], default=3, show_default=True, help="Of each scene in the lab."),
    click.Option(["--plot", "picture"], type=click.Path(path_type=Path),
                 help="Draw goodput over time of the first run of each scene into this file."),
    click.Option(["--features/--no-features", "ends"], default=None,
                 help="Measure all features besides, or none of them."),
], HEADER, lambda result: line(Outcome.of(result)) if "harp" in result else "", footer)
