"""Two ports, and faults: what HARP makes of them, with kernel TCP beside.

    python bench/tccl/tccl_rows.py [--fidelity flow|packet|lab] [--only TEXT] [--runs N] [--plot FILE]
                         [--json] [--save FILE] [--show FILE]

Two hosts have a port each at two ToRs. Data goes one way without end, by one HARP connection over
both ports or by two flows of kernel TCP; ports are hashed, degraded, pulled and put back, and a
dozen faults strike. It happens to a fluid, where that knows the fault (``flow``), packet by packet
in virtual time (``packet``), and to the real stack between namespaces (``lab``, root), N times, of
which medians count.

A line tells the target, when HARP noticed (it sent something again, or traffic was back), when
goodput was back at the target to stay, in bins of 10 ms, which share of what remains got through
from then on, and what never came. It ends with a table of all features at all fidelities, for which
rings run over hashed and planned paths, too (bench/tccl/features.py), and with status 1 if HARP missed a
target. docs/tccl.md has the definitions.

All of it takes eight minutes, most of them in the lab. `--only` leaves the other scenes out, and
`--only features` all of them. `--save` keeps what was measured in a file, in the place of what was
there of the same rows; `--show` prints such a file, as docs/tccl.md does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING


import click
from bench.tccl.scenes import FAULTS, NCCL, TWO_PORTS
from bench.tccl.features import features, table
from bench.tccl.fluid import run_flow
from bench.tccl.packets import run_packet
from bench.tccl.plot import Panel, plot
from bench.tccl.judge import HEADER, judge, line
from bench.tccl.tccl_store import load, save

from lab.wiring import why_unusable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.tccl.scenes import Scene
    from bench.tccl.features import Feature
    from bench.tccl.judge import Row
    from bench.tccl.goodput import Run

SCENES = (*TWO_PORTS, *NCCL, *FAULTS)
FIDELITIES = ("flow", "packet", "lab")
FEATURES = "features"


def run_scene(fidelity: str, scene: Scene, stack: str, runs: int) -> list[Run]:
    """Run a scene some times; what is simulated gives the same each time."""
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


def compare(fidelity: str, scene: Scene, runs: int) -> tuple[list[Row], Panel]:
    """HARP and kernel TCP in one scene."""
    harp = run_scene(fidelity, scene, "harp", runs)
    tcp = run_scene(fidelity, scene, scene.tcp, runs) if fidelity != "flow" else []
    return judge(fidelity, scene, harp, tcp), Panel(fidelity, scene, harp[0], *tcp[:1])


def choose_scenes(only: str | None) -> list[Scene]:
    """Scenes whose name has this text."""
    scenes = [scene for scene in SCENES if not only or only in scene.name]
    if not scenes and only != FEATURES:
        names = ", ".join(scene.name for scene in SCENES)
        raise click.UsageError(f"no scene's name has {only!r}; there are {names}, and {FEATURES}")
    return scenes


def play(scenes: Sequence[Scene], chosen: Sequence[str], runs: int, *,
         quiet: bool) -> tuple[list[Row], list[Panel]]:
    """Play scenes at fidelities, and print lines as they come."""
    rows: list[Row] = []
    panels: list[Panel] = []
    if scenes and not quiet:
        click.echo(HEADER)
    for scene in scenes:
        for each in chosen:
            if not has_scene(each, scene):
                continue
            made, panel = compare(each, scene, runs)
            rows += made
            panels.append(panel)
            if not quiet:
                click.echo("\n".join(map(line, made)))
    return rows, panels


def show(path: Path, only: str | None) -> None:
    """Print what a file has."""
    rows, made = load(path, FIDELITIES)
    if only != FEATURES:
        click.echo("\n".join((HEADER, *map(line, rows), "")))
    click.echo(table(made, FIDELITIES))


def print_json(rows: list[Row], made: list[Feature], fidelities: Sequence[str]) -> None:
    """Print scenes and features."""
    told = [{"feature": one.name, "reference": one.reference,
             **dict(zip(fidelities, one.figures, strict=True))} for one in made]
    click.echo(json.dumps([*(row.to_json() for row in rows), *told]))


@click.command()
@click.option("--fidelity", type=click.Choice(FIDELITIES), multiple=True,
              help="Default: all.")
@click.option("--only", help=f"Scenes whose name has this text; {FEATURES!r}: none of them.")
@click.option("--runs", default=3, help="Of each scene in the lab.")
@click.option("--plot", "picture", type=click.Path(path_type=Path),
              help="Draw goodput over time of the first run of each scene into this file.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--features/--no-features", "ends", default=None,
              help="End with the table of features; by default without --json and --only.")
@click.option("--save", "kept", type=click.Path(path_type=Path), help="Keep it in this file.")
@click.option("--show", "shown", type=click.Path(path_type=Path, exists=True),
              help="Measure nothing, and print this file.")
def main(fidelity: tuple[str, ...], only: str | None, runs: int, picture: Path | None,
         kept: Path | None, shown: Path | None, *, as_json: bool, ends: bool | None) -> None:
    """Print the table."""
    chosen, scenes = fidelity or FIDELITIES, choose_scenes(only)
    if shown is not None:
        show(shown, only)
        return
    if "lab" in chosen and (why := why_unusable()):
        raise click.ClickException(f"fidelity lab {why}; --fidelity packet does not")
    if ends is None:
        ends = only == FEATURES or not (as_json or only)
    rows, panels = play(scenes, chosen, runs, quiet=as_json)
    if picture:
        plot(panels, picture)
    made = features(rows, chosen) if ends else []
    if kept:
        save(kept, rows, made, chosen)
    if as_json:
        print_json(rows, made, chosen)
    elif made:
        click.echo("\n" + table(made, chosen))
    sys.exit(not all(row.good for row in rows))


if __name__ == "__main__":
    main()
