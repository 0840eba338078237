"""What must be right of the settings of an environment before ranks are started by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harp.cli import conf
from harp.cli.io import OutputError, check_target
from harp.lightcc.horovod.settings import Settings
from harp.lightcc.policy import tuning_of
from harp.lightcc.settings import LightSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_settings(environment: Mapping[str, str], *, here: bool) -> None:
    """Raise UsageError, one sentence, where a value cannot be; warn of names that do not exist.

    Only where rank 0 runs ``here`` are files and CPUs that settings name those of this host.
    """
    try:
        LightSettings.from_env(environment)
        timeline = Settings.from_env(environment).timeline
        if here:
            conf.check_environment(environment)
            tuning_of(environment)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if here and timeline and timeline != "DYNAMIC":
        try:
            check_target(timeline)
        except OutputError as error:
            raise click.UsageError(f"HOROVOD_TIMELINE: {error.message}") from None
