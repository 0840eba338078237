"""``harp plan``: choose source ports for jobs' flows so that hashing switches spread them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harp.cli.io import make_folder, read_text, write_text
from harp.cli.plan.job_files import (
    load_background,
    load_jobs,
    planned_job,
    read_plan,
    read_tuning,
    take_down,
)
from harp.routing.deployment import LAUNCHERS

if TYPE_CHECKING:
    from harp.cli.plan.job_files import Loaded
    from harp.routing.background_load import Background
    from harp.routing.deployment import Deployment
    from harp.routing.jobs import Job

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("jobs", metavar="JOB...", type=_PATH, nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", type=_PATH,
              help="Write the plan here instead of standard output. For several jobs: a FOLDER for "
                   "their plans, named after each JOB with .json.")
@click.option("--hostfile", metavar="FILE", help="Write the hosts in the order of their ranks.")
@click.option("--launcher", type=click.Choice(list(LAUNCHERS)), default="openmpi",
              show_default=True, help="Format of --hostfile; for torchrun, each host's options.")
@click.option("--files", metavar="FOLDER", type=_PATH,
              help="Write the files that launchers and NCCL read: hostfiles, rankfile, node "
                   "ranks, graph and environment.")
@click.option("--topo-dump", metavar="FILE", type=_PATH,
              help="File that NCCL_TOPO_DUMP_FILE wrote on one of the hosts; --files then adds a "
                   "topology with the NICs' speeds.")
@click.option("--check", metavar="PLAN", type=_PATH,
              help="Check this plan (for several jobs: the plans in this folder) against the job "
                   "as it is now.")
@click.option("--replan", "running", metavar="PLAN", type=_PATH,
              help="Make the next revision of this plan (or of the plans in this folder); the "
                   "running job follows it. Replaces the file unless -o is given.")
@click.option("--without", metavar="LINK", multiple=True,
              help="Link or switch that is down: leaf0-spine1 (all cables between them), "
                   "leaf0-spine1#2 (the second), leaf0->spine1 (one direction), or a switch. "
                   "May be given several times.")
@click.option("--around", metavar="FILE", type=_PATH, multiple=True,
              help="Traffic of others: the plan of another job, or a file of link rates. May be "
                   "given several times.")
def plan(jobs: tuple[Path, ...], *, output: Path | None, hostfile: str | None, launcher: str,
         files: Path | None, topo_dump: Path | None, check: Path | None, running: Path | None,
         without: tuple[str, ...], around: tuple[Path, ...]) -> None:
    """Plan the paths of jobs' flows over switches that hash.

    \b
    harp plan job.yaml -o plan.json
    eval "$(harp env --plan plan.json)"
    harp plan job.yaml --replan plan.json --without leaf0-spine1
    harp plan one.yaml two.yaml -o plans
    """  # noqa: D301  (click's mark)
    if topo_dump is not None and files is None:
        raise click.UsageError("--topo-dump needs --files")
    _require_folders(jobs, output or running or check, hostfile)
    loaded = [take_down(job, without) for job in load_jobs(jobs)]
    if check is not None:
        for job in loaded:
            _check_plan(_path_of_job(check, job, loaded), job)
        return
    planned = [planned_job(job) for job in loaded]
    made = _make_plans(loaded, planned, running, load_background(around, loaded[0]))
    output = running if output is None else output
    if output is not None and len(jobs) > 1:
        make_folder(output)
    for job, plans in zip(loaded, made, strict=True):
        if files is not None:
            _write_files(_path_of_job(files, job, loaded, ""), plans, job, topo_dump)
        if output is None:
            click.echo(plans.to_json(), nl=False)
        else:
            write_text(str(_path_of_job(output, job, loaded)), plans.to_json())
    if hostfile is not None:
        write_text(hostfile, made[0].hostfile(launcher))
    _print_summary(made, sum(map(_flows_between_hosts, planned)))


def _require_folders(jobs: tuple[Path, ...], plans: Path | None, hostfile: str | None) -> None:
    """Raise UsageError where several jobs would share a file."""
    if len(jobs) == 1:
        return
    stems = [job.stem for job in jobs]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None:
        raise click.UsageError(f"two jobs are called {twice}, and plans are named after jobs")
    if plans is None:
        raise click.UsageError("several jobs need a folder for their plans: give -o FOLDER")
    if hostfile is not None:
        raise click.UsageError("several jobs need a folder for hostfiles: give --files FOLDER")


def _path_of_job(path: Path, job: Loaded, jobs: list[Loaded], suffix: str = ".json") -> Path:
    """Give the path itself for one job, or one job's file in the folder for several."""
    return path if len(jobs) == 1 else path / f"{job.path.stem}{suffix}"


def _make_plans(loaded: list[Loaded], jobs: list[Job], running: Path | None,
          around: Background | None) -> list[Deployment]:
    from harp.routing.jobs import plan_jobs, replan_jobs
    from harp.routing.path_plan import PlanError

    first, names = loaded[0], ", ".join(str(job.path) for job in loaded)
    if running is not None and first.discovered is not None:
        raise click.UsageError(f"{names}: --replan needs a known hash; with links down the maps "
                               "are out of date: run harp probe and harp plan again")
    before = [] if running is None else [read_plan(_path_of_job(running, job, loaded))
                                         for job in loaded]
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


def _check_plan(path: Path, loaded: Loaded) -> None:
    from harp.routing.path_plan import PlanError

    made = read_plan(path)
    try:
        if loaded.discovered is None:
            made.verify(take_down(loaded, made.without).fabric, loaded.bonds)
        elif made.fabric != loaded.discovered.fingerprint(loaded.fabric):
            raise PlanError("links, addresses or maps have changed since it was made: make it "
                            "again with harp plan")
    except PlanError as error:
        raise click.ClickException(f"{path}: {error}") from error
    click.echo(f"{path} is valid: every flow still takes its planned links")


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


def _print_summary(made: list[Deployment], wanted: int) -> None:
    plan, flows = made[0], sum(len(one.flows) for one in made)
    more = ""
    if plan.unrealised:
        more += f"; {plan.unrealised} found no free port for their first choice of path"
    if wanted > flows:
        more += f"; {wanted - flows} more have no path in the maps and will be hashed"
    click.echo(f"{flows} flows of {sum(len(one.ranks) for one in made)} ranks"
               f"{f' of {len(made)} jobs' if len(made) > 1 else ''}: the most loaded link is at "
               f"{plan.max_load:.3g} of its rate; ECMP: {plan.ecmp_load:.3g}, lower bound of any "
               f"routes: {plan.bound:.3g}{more}", err=True)
