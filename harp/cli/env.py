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
    """NCCL's two variables, and HARP's settings of the file and of this environment.

    NCCL_NET makes a plugin that cannot start an error; without it NCCL takes its own sockets
    silently. NCCL_SOCKET_IFNAME is left alone: it is NCCL's own bootstrap that uses it.
    """
    conf.check_environment(os.environ)
    return {"NCCL_NET_PLUGIN": str(find_plugin()), "NCCL_NET": "HARP", **conf.settings()}


@click.command()
@click.option("--plan", metavar="PLAN", type=click.Path(path_type=Path),
              help="A plan of harp plan to follow, and the settings that go with it.")
@click.option("--explain", is_flag=True, help="Say instead what is in force, where each setting "
              "comes from, and which path LightCC takes for tensors.")
@click.option("--ranks", type=click.IntRange(1), default=16, show_default=True,
              help="For --explain: ranks that average.")
@click.option("--hosts", type=click.IntRange(1), default=1, show_default=True,
              help="For --explain: hosts that they are on.")
@click.option("--size", "sizes", multiple=True,
              callback=explain_settings.read_sizes, metavar="SIZE",
              help="For --explain: a tensor's bytes, as 4096, 64K or 25M; several are possible.")
@click.option("--gradient", "gradients", multiple=True,
              callback=explain_settings.read_sizes, metavar="SIZE",
              help="For --explain: a gradient's bytes, in the order of the backward pass; says "
              "which of DDP's buckets it is in, and the path of each.")
@click.option("--bucket-cap", default="25M", show_default=True,
              callback=explain_settings.read_size, metavar="SIZE",
              help="For --gradient: DDP's bucket_cap_mb, in bytes.")
@click.option("--json", "as_json", is_flag=True, help="The same as one JSON object.")
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
    if plan is not None:
        from harp.cli.plan.job_files import read_plan

        made = read_plan(plan)
        _warn_of_others(variables, made)
        _warn_of_host(plan, made)
        variables |= made.settings | {"HARP_PLAN": str(plan.absolute())}
        if not as_json:
            click.echo(f"# Let UDP pass between the hosts of the job: {_ports_of(made)}.")
    if as_json:
        click.echo(json.dumps(variables, indent=2, ensure_ascii=False))
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _check_options(context: click.Context, *, explain: bool) -> None:
    """Refuse options that would change nothing."""
    asked = {"explain": ("ranks", "hosts", "sizes", "gradients", "bucket_cap"),
             "": ("plan", "as_json")}
    for option in asked["" if explain else "explain"]:
        if context.get_parameter_source(option) is not ParameterSource.DEFAULT:
            name = next(word.opts[0] for word in context.command.params if word.name == option)
            raise click.UsageError(f"{name} changes nothing "
                                   f"{'with' if explain else 'without'} --explain")


def _warn_of_others(variables: dict[str, str], made: Deployment) -> None:
    """Say which settings of this host do not go with the plan, which wins."""
    for name, value in made.settings.items():
        found = variables.get(name, os.environ.get(name))
        if found not in {None, value}:
            click.echo(f"warning: {name} is {found} here, and the plan was made for {value}, which "
                       "is taken", err=True)


def _warn_of_host(plan: Path, made: Deployment) -> None:
    """Say where no rank of the plan listens on this host: its ranks would not follow it."""
    addresses = sorted({text.rpartition(":")[0] for rank in made.ranks for text in rank.listen})
    if addresses and not any(map(nics.is_own_address, addresses)):
        told = ", ".join(addresses[:MOST_ADDRESSES]) + ", …" * (len(addresses) > MOST_ADDRESSES)
        click.echo(f"warning: {plan} has no rank on this host, none of whose addresses is in it "
                   f"({told}): ranks here do not follow it", err=True)


def _ports_of(made: Deployment) -> str:
    """UDP ports that the plan's ranks listen on, and leave by."""
    kinds = {"to listen": [text for rank in made.ranks for text in rank.listen],
             "as sources": [flow.source for flow in made.flows]}
    told = []
    for what, addresses in kinds.items():
        ports = sorted({int(text.rpartition(":")[2]) for text in addresses})
        if ports:
            told.append(f"{ports[0]}" + (f" to {ports[-1]}" if len(ports) > 1 else "") + f" {what}")
    return ", ".join(told) or "there are no ranks"
