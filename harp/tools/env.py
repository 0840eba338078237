"""``harp env``: the environment that makes NCCL use HARP, for ``eval "$(harp env)"``."""

from __future__ import annotations

import json
import shlex

import click

from harp.tools import conf, plugin_path


def environment() -> dict[str, str]:
    """NCCL's two variables, and HARP's settings of the file and of this environment.

    NCCL_NET makes a plugin that cannot start an error; without it NCCL takes its own sockets
    silently. NCCL_SOCKET_IFNAME is left alone: it is NCCL's own bootstrap that uses it.
    """
    return {"NCCL_NET_PLUGIN": str(plugin_path.find()), "NCCL_NET": "HARP", **conf.settings()}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The same as one JSON object.")
def env(*, as_json: bool) -> None:
    """Print the environment that makes NCCL use HARP.

    \b
    eval "$(harp env)"
    """  # noqa: D301  (click's mark)
    variables = environment()
    if as_json:
        click.echo(json.dumps(variables, indent=2, ensure_ascii=False))
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")
