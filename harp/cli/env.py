"""``harp env`` and ``harp plugin-path``: the environment that makes NCCL use HARP.

>>> eval "$(harp env)"                            # doctest: +SKIP
>>> NCCL_NET_PLUGIN=$(harp plugin-path)           # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
import shlex
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from harp.cli import conf
from harp.cli import explain as explain_settings
from harp.net import nics

if TYPE_CHECKING:
    from harp.routing.deployment import Deployment

PLUGIN = "libnccl-net-harp.so"
MOST_ADDRESSES = 4
"""Addresses of a plan that a warning lists."""


def find_plugin() -> Path:
    """Give the absolute path of the plugin in this package, installed or editable."""
    library = files("harp") / PLUGIN
    if not (isinstance(library, Path) and library.is_file()):
        raise click.ClickException(f"this installation of harp has no {PLUGIN}: install it again; "
                                   "building it needs a C compiler")
    return library.resolve()


@click.command("plugin-path")
def plugin_path() -> None:
    """Print the absolute path of the NCCL plugin.

    NCCL_NET_PLUGIN=$(harp plugin-path) makes NCCL load it.
    """
    click.echo(find_plugin())


def environment() -> dict[str, str]:
    """Collect NCCL's two variables, and HARP's settings of the file and this environment.

    With NCCL_NET a plugin that cannot start is an error; without it NCCL silently uses its own
    sockets. NCCL_SOCKET_IFNAME is not set: NCCL's own bootstrap uses it.
    """
    conf.check_environment(os.environ)
    return {"NCCL_NET_PLUGIN": str(find_plugin()), "NCCL_NET": "HARP", **conf.settings()}


@click.command()
@click.option("--plan", metavar="PLAN", type=click.Path(path_type=Path),
              help="Plan of harp plan to follow; adds the settings that it needs.")
@click.option("--explain", is_flag=True, help="Print instead each setting in force, its origin, "
              "and the algorithm that LightCC uses for tensors.")
@click.option("--ranks", type=click.IntRange(1), default=16, show_default=True,
              help="For --explain: number of ranks that average.")
@click.option("--hosts", type=click.IntRange(1), default=1, show_default=True,
              help="For --explain: number of hosts of the ranks.")
@click.option("--size", "sizes", multiple=True,
              callback=explain_settings.read_sizes, metavar="SIZE",
              help="For --explain: a tensor's bytes, like 4096, 64K or 25M. May be given several "
              "times.")
@click.option("--gradient", "gradients", multiple=True,
              callback=explain_settings.read_sizes, metavar="SIZE",
              help="For --explain: a gradient's bytes, in the order of the backward pass; prints "
              "DDP's buckets and the algorithm of each.")
@click.option("--bucket-cap", default="25M", show_default=True,
              callback=explain_settings.read_size, metavar="SIZE",
              help="For --gradient: DDP's bucket_cap_mb, in bytes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def env(*, plan: Path | None, explain: bool, ranks: int, hosts: int, sizes: tuple[int, ...],
        gradients: tuple[int, ...], bucket_cap: int, as_json: bool) -> None:
    """Print the environment that makes NCCL use HARP.

    \b
    eval "$(harp env)"
    harp env --explain --size 25M
    """  # noqa: D301  (click's mark)
    _check_options(click.get_current_context(), explain=explain)
    if explain:
        for line in explain_settings.explanation(ranks, hosts, sizes, gradients, bucket_cap):
            click.echo(line)
        return
    variables = environment()
    conf.check_files({name: value for name, value in variables.items()
                      if plan is None or name != "HARP_PLAN"})
    if plan is not None:
        from harp.cli.plan.job_files import read_plan

        made = read_plan(plan)
        _warn_of_others(variables, made)
        _warn_of_host(plan, made)
        variables |= made.settings | {"HARP_PLAN": str(plan.absolute())}
        if not as_json:
            click.echo(f"# Let {made.protocol.upper()} pass between the hosts of the job: "
                       f"{_ports_of(made)}.")
    if as_json:
        click.echo(json.dumps(variables, indent=2, ensure_ascii=False))
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _check_options(context: click.Context, *, explain: bool) -> None:
    """Refuse options that have no effect here."""
    asked = {"explain": ("ranks", "hosts", "sizes", "gradients", "bucket_cap"),
             "": ("plan", "as_json")}
    for option in asked["" if explain else "explain"]:
        if context.get_parameter_source(option) is not ParameterSource.DEFAULT:
            name = next(word.opts[0] for word in context.command.params if word.name == option)
            raise click.UsageError(f"{name} has no effect "
                                   f"{'with' if explain else 'without'} --explain")


def _warn_of_others(variables: dict[str, str], made: Deployment) -> None:
    """Warn of settings of this host that the plan overrides."""
    for name, value in made.settings.items():
        found = variables.get(name, os.environ.get(name))
        if found not in {None, value}:
            click.echo(f"warning: {name} is {found} here, but the plan was made for {value}, which "
                       "is used", err=True)


def _warn_of_host(plan: Path, made: Deployment) -> None:
    """Warn if the plan lists no address of this host: its ranks would ignore the plan."""
    addresses = sorted({text.rpartition(":")[0] for rank in made.ranks for text in rank.listen})
    if addresses and not any(map(nics.is_own_address, addresses)):
        listed = ", ".join(addresses[:MOST_ADDRESSES]) + ", …" * (len(addresses) > MOST_ADDRESSES)
        click.echo(f"warning: {plan} lists no address of this host ({listed}); its ranks will "
                   "ignore the plan", err=True)


def _ports_of(made: Deployment) -> str:
    """Describe the ports that the plan's ranks listen on and send from."""
    kinds = {"to listen": [text for rank in made.ranks for text in rank.listen],
             "as sources": [flow.source for flow in made.flows]}
    parts = []
    for what, addresses in kinds.items():
        ports = sorted({int(text.rpartition(":")[2]) for text in addresses})
        if ports:
            last = f" to {ports[-1]}" if len(ports) > 1 else ""
            parts.append(f"{ports[0]}{last} {what}")
    return ", ".join(parts) or "there are no ranks"
