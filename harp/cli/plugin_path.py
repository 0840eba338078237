"""``harp plugin-path``: where the NCCL plugin lies, for ``NCCL_NET_PLUGIN=$(harp plugin-path)``."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

LIBRARY = "libnccl-net-harp.so"


def find() -> Path:
    """Give the plugin's absolute path: it belongs to the package, installed or editable."""
    library = files("harp") / LIBRARY
    if not (isinstance(library, Path) and library.is_file()):
        raise click.ClickException(f"there is no {LIBRARY} in this installation of harp: "
                                   "install it again, with a C compiler if it is built here")
    return library.resolve()


@click.command("plugin-path")
def plugin_path() -> None:
    """Print the absolute path of the NCCL plugin.

    NCCL_NET_PLUGIN=$(harp plugin-path) makes NCCL load it.
    """
    click.echo(find())
