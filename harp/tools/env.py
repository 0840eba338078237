"""``harp env``: the environment that makes NCCL use HARP, for ``eval "$(harp env)"``."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harp.tools import conf, plugin_path

if TYPE_CHECKING:
    from harp.routing.deployment import Deployment


def environment() -> dict[str, str]:
    """NCCL's two variables, and HARP's settings of the file and of this environment.

    NCCL_NET makes a plugin that cannot start an error; without it NCCL takes its own sockets
    silently. NCCL_SOCKET_IFNAME is left alone: it is NCCL's own bootstrap that uses it.
    """
    return {"NCCL_NET_PLUGIN": str(plugin_path.find()), "NCCL_NET": "HARP", **conf.settings()}


@click.command()
@click.option("--plan", metavar="PLAN", type=click.Path(path_type=Path),
              help="A plan of harp plan to follow, and the settings that go with it.")
@click.option("--json", "as_json", is_flag=True, help="The same as one JSON object.")
def env(*, plan: Path | None, as_json: bool) -> None:
    """Print the environment that makes NCCL use HARP.

    \b
    eval "$(harp env)"
    """  # noqa: D301  (click's mark)
    variables = environment()
    if plan is not None:
        from harp.tools.plan import read_plan

        made = read_plan(plan)
        _warn_of_others(variables, made)
        variables |= made.settings | {"HARP_PLAN": str(plan.absolute())}
        if not as_json:
            click.echo(f"# Let UDP pass between the hosts of the job: {_ports_of(made)}.")
    if as_json:
        click.echo(json.dumps(variables, indent=2, ensure_ascii=False))
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _warn_of_others(variables: dict[str, str], made: Deployment) -> None:
    """Say which settings of this host do not go with the plan, which wins."""
    for name, value in made.settings.items():
        found = variables.get(name, os.environ.get(name))
        if found not in {None, value}:
            click.echo(f"warning: {name} is {found} here, and the plan was made for {value}, which "
                       "is taken", err=True)


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
