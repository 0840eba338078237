"""The file of settings that the NCCL plugin reads: lines ``NAME=value``, as in nccl.conf.

``cnet/nccl/settings.c`` is its reader; `docs/nccl.md` says what each name does.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import click

FILE = Path("/etc/harp/harp.conf")
NAMES = ("HARP_IFNAME", "HARP_PORT", "HARP_PROGRESS", "HARP_CPUS", "HARP_ENGINES", "HARP_PATHS",
         "HARP_SOCKETS", "HARP_RAILS", "HARP_PLAN", "HARP_TUNER", "HARP_CC", "HARP_MTU",
         "HARP_SPEED", "HARP_TRAFFIC_CLASS", "HARP_TIMEOUT", "HARP_STATS", "HARP_DUMP",
         "HARP_FAULTS", "HARP_XDP", "HARP_BUSY_POLL")
"""What may stand in the file."""


def path() -> Path:
    """Give the file that the plugin would read in this environment."""
    return Path(os.environ.get("HARP_CONF_FILE") or FILE)


def settings() -> dict[str, str]:
    """Read the file and then the environment, which wins; an empty value says nothing."""
    file = path()
    try:
        text = file.read_text()
    except FileNotFoundError:
        if os.environ.get("HARP_CONF_FILE"):
            raise click.ClickException(f"HARP_CONF_FILE {file} does not exist") from None
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise click.ClickException(f"the file of settings {file} cannot be read: "
                                   f"{reason}") from None
    found = parse(text, str(file))
    found |= {name: os.environ[name] for name in NAMES if os.environ.get(name)}
    return found


def parse(text: str, where: str) -> dict[str, str]:
    """Read the lines; a name that the plugin does not know is a warning, as it is there."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or name.startswith("#"):
            continue
        if not equals:
            raise click.ClickException(f'{where}:{number}: "{name}" is no line NAME=value')
        if name == "HARP_CONF_FILE":
            raise click.ClickException(f"{where}:{number}: HARP_CONF_FILE is not for a file: "
                                       "possible is a path, in the environment only")
        if name in NAMES:
            found |= {name: value} if value else {}
        else:
            nearest = difflib.get_close_matches(name, NAMES, 1, 0)[0]
            click.echo(f"warning: {where}:{number}: {name} is not known and changes nothing; "
                       f"the nearest name is {nearest}", err=True)
    return found
