"""``harp run``: start a command as several ranks, here and on other hosts.

Where to look:

    host_slots.py  hosts and their slots: options, hostfile, discovery script
    here.py        this host among those of the job, and the address at which the others reach it
    processes.py   starts the ranks, by ssh where they are on another host, and ends them together
"""

from __future__ import annotations

import os
import shutil
import signal
from functools import partial
from pathlib import Path

import click

from harp.cli import conf
from harp.cli.options import starting
from harp.cli.run.here import LOOPBACK, addresses_of, free_port, is_here, own_address
from harp.cli.run.host_slots import FoundHosts, parse_hosts, read_hostfile
from harp.cli.run.processes import Job, place_ranks
from harp.cli.run.ssh import ssh_to
from harp.nearest import did_you_mean

MOST_RANKS = 65536
"""Most of a job; each needs a process and two threads of this one."""
START_S = 600.0
"""Time for --host-discovery-script to find enough slots; Horovod's --elastic-timeout."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-np", "-n", "--num-proc", "number", type=click.IntRange(1), metavar="N",
              help="Ranks to start.  [the number of slots]")
@click.option("-H", "--hosts", metavar="HOST:SLOTS,…", help="Hosts and their slots.  [this host]")
@click.option("--hostfile", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="File of hosts, one line each: HOST slots=N.")
@click.option("--min-np", "least", type=click.IntRange(1), metavar="N",
              help="Continue while at least N ranks are left (hvd.elastic).")
@click.option("--max-np", "most", type=click.IntRange(1), metavar="N",
              help="Use at most N slots.  [no limit]")
@click.option("--host-discovery-script", "script", metavar="FILE",
              type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Program that prints lines HOST:SLOTS; ranks are added and removed accordingly "
              "(hvd.elastic).")
@click.option("--ssh-port", type=click.IntRange(1, 65535), help="TCP port of ssh.")
@click.option("--address", help="Address of this host that the other hosts can reach.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(context: click.Context, *, number: int | None, hosts: str | None, hostfile: Path | None,
        least: int | None, most: int | None, script: Path | None, ssh_port: int | None,
        address: str | None, command: tuple[str, ...]) -> None:
    """Start a command as several ranks.

    The environment has each rank's number, in torchrun's names and Horovod's. Output lines begin
    with the rank. If a rank fails, all are ended and its status is this command's.

    \b
    harp run -np 2 python examples/lightcc/horovod_mnist.py
    harp run --min-np 2 --host-discovery-script ./hosts.sh python train.py
    """  # noqa: D301  (click's mark)
    _check_options(number, hosts, hostfile, least, most, script)
    found = _find_hosts(script, least or number or 1) if script else None
    given = (found() if found else parse_hosts(hosts) if hosts is not None
             else read_hostfile(hostfile) if hostfile else [("localhost", number or 1)])
    slots = sum(count for _, count in given)
    if found:
        least, number = least or number or 1, min(number or slots, most or slots, slots)
    number = number or slots
    if number > slots:
        raise click.UsageError(f"-np is {number}, but the hosts have {slots} slots")
    if number > MOST_RANKS:
        raise click.UsageError(f"{number} ranks are more than a job can have, {MOST_RANKS}")
    ranks = place_ranks(given, number)
    if any(is_here(rank.host) for rank in ranks):
        _require_program(command[0])
    begins_here = is_here(ranks[0].host)
    conf.check_settings(os.environ, here=begins_here)
    if address:
        _check_address(address, is_met_here=begins_here)
    far = next((rank.host for rank in ranks if not is_here(rank.host)), None)
    job = Job(ranks, command, os.environ, address or (own_address(far) if far else LOOPBACK),
              free_port(), least or 0, partial(ssh_to, port=ssh_port), most, found)
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda *_: job.interrupt())
    try:
        with starting(command[0]):
            job.start()
        status, why = job.wait()
    except (KeyboardInterrupt, OSError, click.UsageError):
        job.end()
        raise
    finally:
        if found:
            found.close()
    if why:
        click.echo(f"error: {why}", err=True)
    context.exit(status)


def _check_options(number: int | None, hosts: str | None, hostfile: Path | None,
                   least: int | None, most: int | None, script: Path | None) -> None:
    if sum(map(bool, (hosts, hostfile, script))) > 1:
        raise click.UsageError("give only one of -H, --hostfile and --host-discovery-script")
    if most is not None and not script:
        raise click.UsageError("--max-np needs --host-discovery-script")
    for option, limit in (("-np", number), ("--max-np", most)):
        if least is not None and limit is not None and least > limit:
            raise click.UsageError(f"--min-np is {least}, more than the {limit} ranks of {option}")


def _require_program(name: str) -> None:
    if shutil.which(name):
        return
    if os.path.isdir(name):  # noqa: PTH112 - pathlib raises for a name that is too long
        raise click.UsageError(f"{name!r} is a directory, not a program")
    if os.path.exists(name) and "/" in name:  # noqa: PTH110 - as above
        raise click.UsageError(f"{name!r} is not executable; use chmod +x, or name its "
                               f"interpreter, e.g. python {name}")
    if "/" in name:
        raise click.UsageError(f"there is no program {name!r}")
    programs = {one for folder in os.get_exec_path() for one in _names_in(folder)}
    hint = did_you_mean(name, programs) or f"; for a program in this directory use ./{name}"
    raise click.UsageError(f"there is no program {name!r} in PATH{hint}")


def _names_in(folder: str) -> list[str]:
    """Names of a folder of PATH, which need not be there, nor be readable."""
    try:
        return [path.name for path in Path(folder).iterdir()]
    except OSError:
        return []


def _find_hosts(script: Path, slots: int) -> FoundHosts:
    if not os.access(script, os.X_OK):
        raise click.BadParameter(f"{script} is not executable; use chmod +x",
                                 param_hint="--host-discovery-script")
    found = FoundHosts(script.absolute())
    there = sum(count for _, count in found.wait_for(slots, START_S))
    if there < slots:
        raise click.ClickException(f"{script} found {there} slots in {START_S:g} s, fewer than "
                                   f"{slots}")
    return found


def _check_address(address: str, *, is_met_here: bool) -> None:
    """Refuse an address that ranks cannot reach: they would all wait for one another."""
    if not addresses_of(address):
        raise click.UsageError(f"--address: unknown host {address!r}; give a name or an address "
                               "of this host that the ranks can reach")
    if is_met_here and not is_here(address):
        raise click.UsageError(f"--address: {address} is not an address of this host, where rank "
                               "0 runs and the ranks meet; `ip address` lists them")
