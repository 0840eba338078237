"""HARP's settings as the NCCL plugin reads them: a file like nccl.conf, and the environment.

The file has lines ``NAME=value``. The plugin's reader, ``cnet/nccl/settings.c``, checks the values
here too. `docs/use/nccl.md` explains each name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harp._cnet import ffi, lib
from harp.nearest import nearest_name
from harp.reading import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILE = Path("/etc/harp/harp.conf")
NAMES = ("HARP_IFNAME", "HARP_PORT", "HARP_PROGRESS", "HARP_CPUS", "HARP_ENGINES", "HARP_PATHS",
         "HARP_SOCKETS", "HARP_RAILS", "HARP_PLAN", "HARP_TUNER", "HARP_CRC", "HARP_CC",
         "HARP_MTU",
         "HARP_SPEED", "HARP_TRAFFIC_CLASS", "HARP_TIMEOUT", "HARP_STATS", "HARP_DUMP",
         "HARP_FAULTS", "HARP_XDP", "HARP_BUSY_POLL")
"""Names that the file may set."""
LIGHTCC = ("HARP_IFNAME", "HARP_PORT", "HARP_TUNER", "HARP_FAULTS")
"""Names that LightCC reads too, from the environment."""
ELSEWHERE = ("HARP_CONF_FILE", "HARP_STORE", "HARP_ELASTIC")
"""Names of the environment alone: the file, and how LightCC's ranks meet."""
WHY_BYTES = 512
"""Buffer size for a sentence about a value."""


def path() -> Path:
    """Give the file that the plugin would read."""
    return Path(os.environ.get("HARP_CONF_FILE") or FILE)


def settings() -> dict[str, str]:
    """Read the file, then the environment, which wins; empty values are ignored."""
    file = path()
    try:
        text = read_text(file)
    except FileNotFoundError:
        if os.environ.get("HARP_CONF_FILE"):
            raise click.UsageError(f"HARP_CONF_FILE {file} does not exist") from None
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise click.UsageError(f"the settings file {file} cannot be read: {reason}") from None
    found = parse(text, str(file))
    found |= {name: os.environ[name] for name in NAMES if os.environ.get(name)}
    return found


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse invalid values and warn of unknown names, as the plugin does."""
    for name, value in environment.items():
        if name in NAMES:
            if wrong := _why_wrong(name, value):
                raise click.UsageError(wrong)
        elif name.startswith("HARP_") and name not in ELSEWHERE:
            _warn_of_unknown(name, "", (*NAMES, *ELSEWHERE))


def check_files(settings: Mapping[str, str]) -> None:
    """Refuse a tuning table or a plan that is missing or cannot be read as one; UsageError."""
    from harp.cli.io import InputError
    from harp.cli.plan.job_files import read_plan
    from harp.lightcc.policy import tuning_of

    try:
        tuning_of(settings)
        if plan := settings.get("HARP_PLAN"):
            read_plan(Path(plan))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except InputError as error:
        raise click.UsageError(f"HARP_PLAN {error.message}") from None


def check_settings(environment: Mapping[str, str], *, here: bool) -> None:
    """Validate the environment before ranks start; UsageError, one sentence, for a bad value.

    A name that does not exist is a warning. Files and CPUs are checked only with ``here``: where
    rank 0 runs on this host.
    """
    from harp.cli.io import OutputError, check_target
    from harp.lightcc.horovod.horovod_settings import DYNAMIC, Settings
    from harp.lightcc.settings import LightSettings

    try:
        LightSettings.from_env(environment)
        timeline = Settings.from_env(environment).timeline
        if here:
            check_environment(environment)
            check_files(environment)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if here and timeline and timeline != DYNAMIC:
        try:
            check_target(timeline)
        except OutputError as error:
            raise click.UsageError(f"HOROVOD_TIMELINE: {error.message}") from None


def parse(text: str, where: str) -> dict[str, str]:
    """Parse the lines; an unknown name is a warning, as it is in the plugin."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or name.startswith("#"):
            continue
        if not equals:
            raise click.UsageError(f'{where}:{number}: "{name}" is no line NAME=value')
        if name == "HARP_CONF_FILE":
            raise click.UsageError(f"{where}:{number}: HARP_CONF_FILE is not for a file: "
                                   "possible is a path, in the environment only")
        if name not in NAMES:
            _warn_of_unknown(name, f"{where}:{number}: ", NAMES)
        elif wrong := _why_wrong(name, value):
            raise click.UsageError(f"{where}:{number}: {wrong}")
        elif value:
            found[name] = value
    return found


def _why_wrong(name: str, value: str) -> str:
    """Give the plugin's sentence about a value that it refuses, or an empty one."""
    why = ffi.new("char[]", WHY_BYTES)
    right = lib.settings_allow(name.encode(), os.fsencode(value), why, WHY_BYTES)
    return "" if right else ffi.string(why).decode(errors="replace")


def _warn_of_unknown(name: str, where: str, known: Sequence[str]) -> None:
    click.echo(f"warning: {where}{name} is not known and changes nothing; the nearest name is "
               f"{nearest_name(name, known, 0)}", err=True)
