"""``harp plan``: source ports for all flows of jobs, so that switches that hash keep them apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harp.cli.io import make_folder, write_text
from harp.cli.plan.job_files import (
    load_background,
    load_jobs,
    planned_job,
    read_plan,
    read_text,
    read_tuning,
    take_down,
)
from harp.routing.deployment import LAUNCHERS

if TYPE_CHECKING:
    from harp.cli.plan.job_files import Loaded
    from harp.routing.background import Background
    from harp.routing.deployment import Deployment
    from harp.routing.jobs import Job

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("jobs", metavar="JOB...", type=_PATH, nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", type=_PATH,
              help="Write the plan here, not to standard output; of several jobs a FOLDER for "
                   "their plans, JOB's name and .json.")
@click.option("--hostfile", metavar="FILE", help="Write the hosts in the order of their ranks.")
@click.option("--launcher", type=click.Choice(list(LAUNCHERS)), default="openmpi",
              show_default=True, help="Who reads it; of torchrun the options on each host.")
@click.option("--files", metavar="FOLDER", type=_PATH,
              help="Write what launchers and NCCL read: hostfiles, rankfile, node ranks, "
                   "graph and environment.")
@click.option("--topo-dump", metavar="FILE", type=_PATH,
              help="What NCCL_TOPO_DUMP_FILE wrote on such a host; --files then has a topology "
                   "with the NICs' speeds.")
@click.option("--check", metavar="PLAN", type=_PATH,
              help="Say whether this plan, or of several jobs those of this folder, holds for the "
                   "job as it is now.")
@click.option("--replan", "running", metavar="PLAN", type=_PATH,
              help="Make the next revision of this plan, or of those of this folder, which the job "
                   "follows while it runs; without -o in its place.")
@click.option("--without", metavar="LINK", multiple=True,
              help="What is down: leaf0-spine1 (all cables between them), leaf0-spine1#2 (the "
                   "second), leaf0->spine1 (one way), or a switch with all of its cables. May be "
                   "given several times.")
@click.option("--around", metavar="FILE", type=_PATH, multiple=True,
              help="What others send: the plan of a job that is not planned here, or rates of "
                   "links. May be given several times.")
def plan(jobs: tuple[Path, ...], *, output: Path | None, hostfile: str | None, launcher: str,
         files: Path | None, topo_dump: Path | None, check: Path | None, running: Path | None,
         without: tuple[str, ...], around: tuple[Path, ...]) -> None:
    """Plan the paths of jobs' flows over switches that hash ports.

    \b
    harp plan job.yaml -o plan.json
    eval "$(harp env --plan plan.json)"
    harp plan job.yaml --replan plan.json --without leaf0-spine1
    harp plan one.yaml two.yaml -o plans
    """  # noqa: D301  (click's mark)
    if topo_dump is not None and files is None:
        raise click.UsageError("--topo-dump has no meaning without --files")
    _require_folders(jobs, output or running or check, hostfile)
    loaded = [take_down(job, without) for job in load_jobs(jobs)]
    if check is not None:
        for job in loaded:
            _check(_of_job(check, job, loaded), job)
        return
    planned = [planned_job(job) for job in loaded]
    made = _make(loaded, planned, running, load_background(around, loaded[0]))
    output = running if output is None else output
    if output is not None and len(jobs) > 1:
        make_folder(output)
    for job, plans in zip(loaded, made, strict=True):
        if files is not None:
            _write_files(_of_job(files, job, loaded, ""), plans, job, topo_dump)
        if output is None:
            click.echo(plans.to_json(), nl=False)
        else:
            write_text(str(_of_job(output, job, loaded)), plans.to_json())
    if hostfile is not None:
        write_text(hostfile, made[0].hostfile(launcher))
    _say(made, sum(map(_flows_between_hosts, planned)))


def _require_folders(jobs: tuple[Path, ...], plans: Path | None, hostfile: str | None) -> None:
    """Raise UsageError where several jobs are to share a file."""
    if len(jobs) == 1:
        return
    stems = [job.stem for job in jobs]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None:
        raise click.UsageError(f"two jobs have the name {twice}, which is to be their plan's")
    if plans is None:
        raise click.UsageError("several jobs have a plan each: give -o FOLDER for them")
    if hostfile is not None:
        raise click.UsageError("several jobs have hostfiles each: give --files FOLDER for them")


def _of_job(path: Path, job: Loaded, jobs: list[Loaded], suffix: str = ".json") -> Path:
    """What of a path is one job's: all of it, or of several jobs a file in this folder."""
    return path if len(jobs) == 1 else path / f"{job.path.stem}{suffix}"


def _make(loaded: list[Loaded], jobs: list[Job], running: Path | None,
          around: Background | None) -> list[Deployment]:
    from harp.routing.jobs import plan_jobs, replan_jobs
    from harp.routing.path_plan import PlanError

    first, names = loaded[0], ", ".join(str(job.path) for job in loaded)
    if running is not None and first.discovered is not None:
        raise click.UsageError(f"{names}: --replan needs a hash that is known, and with links down "
                               "its maps no longer hold: run harp probe anew, and plan anew")
    before = [] if running is None else [read_plan(_of_job(running, job, loaded)) for job in loaded]
    try:
        made = (replan_jobs(first.fabric, jobs, before, first.bonds, around) if before else
                plan_jobs(first.fabric, jobs, first.discovered, first.bonds, around))
    except PlanError as error:
        raise click.ClickException(f"{running or names}: {error}") from error
    except ValueError as error:
        raise click.UsageError(f"{names}: {error}") from error
    return [plans if job.job.tuning is None else
            replace(plans, tuning=read_tuning(job.path.parent / job.job.tuning))
            for job, plans in zip(loaded, made, strict=True)]


def _flows_between_hosts(job: Job) -> int:
    ranks, wanted = job
    return wanted.connections * wanted.paths * sum(
        int(ranks.host[a] != ranks.host[b]) for a, b in wanted.pairs)


def _check(path: Path, loaded: Loaded) -> None:
    from harp.routing.path_plan import PlanError

    made = read_plan(path)
    try:
        if loaded.discovered is None:
            made.verify(take_down(loaded, made.without).fabric, loaded.bonds)
        elif made.fabric != loaded.discovered.fingerprint(loaded.fabric):
            raise PlanError("links, addresses or maps are others than it was made for: make it "
                            "anew with harp plan")
    except PlanError as error:
        raise click.ClickException(f"{path}: {error}") from error
    click.echo(f"{path} holds: every flow takes the links that it has there")


def _write_files(folder: Path, made: Deployment, loaded: Loaded, dump: Path | None) -> None:
    from harp.cli.plan.launcher_files import plan_files
    from harp.routing.nccl_files import NcclFileError

    try:
        texts = plan_files(made, loaded.job, loaded.cluster,
                           None if dump is None else read_text(dump))
    except NcclFileError as error:
        raise click.UsageError(f"{dump}: {error}") from error
    make_folder(folder)
    for name, text in texts.items():
        write_text(str(folder / name), text)
    click.echo(f"{folder}: {', '.join(texts)}", err=True)


def _say(made: list[Deployment], wanted: int) -> None:
    plan, flows = made[0], sum(len(one.flows) for one in made)
    more = ""
    if plan.unrealised:
        more += f"; {plan.unrealised} found no port of their own for the path first chosen"
    if wanted > flows:
        more += f"; {wanted - flows} more have no way in the maps and will be hashed"
    click.echo(f"{flows} flows of {sum(len(one.ranks) for one in made)} ranks"
               f"{f' of {len(made)} jobs' if len(made) > 1 else ''}: the fullest link is at "
               f"{plan.max_load:.3g} of its rate, at {plan.ecmp_load:.3g} by ECMP, and no routes "
               f"can do better than {plan.bound:.3g}{more}", err=True)
