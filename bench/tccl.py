"""Two ports, and faults: what HARP makes of them, with kernel TCP beside.

    python bench/tccl.py [--fidelity flow|packet|lab] [--only TEXT] [--runs N] [--plot FILE]
                         [--json]

Two hosts have a port each at two ToRs. Data goes one way without end, by one HARP connection over
both ports or by two flows of kernel TCP; ports are hashed, degraded, pulled and put back, and a
dozen faults strike. It happens to a fluid, where that knows the fault (``flow``), packet by packet
in virtual time (``packet``), and to the real stack between namespaces (``lab``, root), N times, of
which medians count.

A line tells the target, when HARP noticed (it sent something again, or traffic was back), when
goodput was back at the target to stay, in bins of 10 ms, which share of what remains got through
from then on, and what never came. docs/tccl.md has the definitions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import click
from tccl_faults import FAULTS, NCCL, TWO_PORTS
from tccl_flow import run_flow
from tccl_packet import run_packet
from tccl_plot import Panel, plot
from tccl_rows import HEADER, judge, line

if TYPE_CHECKING:
    from tccl_faults import Scene
    from tccl_rows import Row
    from tccl_trace import Run

SCENES = (*TWO_PORTS, *NCCL, *FAULTS)
FIDELITIES = ("flow", "packet", "lab")


def run_scene(fidelity: str, scene: Scene, stack: str, runs: int) -> list[Run]:
    """Run a scene some times; what is simulated gives the same each time."""
    if fidelity == "flow":
        return [run_flow(scene)]
    if fidelity == "packet":
        return [run_packet(scene, stack)]
    if scene in NCCL:
        from tccl_nccl import run_nccl
        return [run_nccl(scene, stack) for _ in range(runs)]
    from tccl_traffic import run_lab
    return [run_lab(scene, stack) for _ in range(runs)]


def has_scene(fidelity: str, scene: Scene) -> bool:
    """Whether a fidelity can play a scene."""
    return fidelity == "lab" or (scene.fluid if fidelity == "flow" else scene not in NCCL)


def compare(fidelity: str, scene: Scene, runs: int) -> tuple[list[Row], Panel]:
    """HARP and kernel TCP in one scene."""
    harp = run_scene(fidelity, scene, "harp", runs)
    tcp = run_scene(fidelity, scene, scene.tcp, runs) if fidelity != "flow" else []
    return judge(fidelity, scene, harp, tcp), Panel(fidelity, scene, harp[0], *tcp[:1])


@click.command()
@click.option("--fidelity", type=click.Choice(FIDELITIES), multiple=True,
              help="Default: all.")
@click.option("--only", help="Scenes whose name has this text.")
@click.option("--runs", default=3, help="Of each scene in the lab.")
@click.option("--plot", "picture", type=click.Path(path_type=Path),
              help="Draw goodput over time of the first run of each scene into this file.")
@click.option("--json", "as_json", is_flag=True)
def main(fidelity: tuple[str, ...], only: str | None, runs: int, picture: Path | None, *,
         as_json: bool) -> None:
    """Print the table."""
    scenes = [scene for scene in SCENES if not only or only in scene.name]
    if not scenes:
        names = ", ".join(scene.name for scene in SCENES)
        raise click.UsageError(f"no scene's name has {only!r}; there are {names}")
    rows: list[Row] = []
    panels: list[Panel] = []
    if not as_json:
        click.echo(HEADER)
    for scene in scenes:
        for each in fidelity or FIDELITIES:
            if not has_scene(each, scene):
                continue
            made, panel = compare(each, scene, runs)
            rows += made
            panels.append(panel)
            if not as_json:
                click.echo("\n".join(map(line, made)))
    if picture:
        plot(panels, picture)
    if as_json:
        click.echo(json.dumps([row.to_json() for row in rows]))


if __name__ == "__main__":
    main()
