"""The command of ssh that reaches a host, which ends in bounded time where the host is dead.

By itself ssh waits minutes for a host that does not answer, and hours for one that has gone. Bounds
of the user's own (``~/.ssh/config``) stay: ``ssh -G HOST`` prints what ssh would use, and those of
`BOUNDS` are given where it has none.
"""

from __future__ import annotations

import subprocess
from functools import cache

import click

BOUNDS = {"connecttimeout none": "ConnectTimeout=10", "serveraliveinterval 0":
          "ServerAliveInterval=30"}
"""A line of ``ssh -G`` where there is no bound, and the bound, in seconds. A host that has gone is
one that has not answered three times in turn (ssh_config(5), ServerAliveCountMax)."""


@cache
def ssh_to(host: str, port: int | None = None) -> tuple[str, ...]:
    """Give the words before the command that the host is to run; UsageError without ssh."""
    words = ["ssh", *(["-p", str(port)] if port else [])]
    try:
        known = subprocess.run([*words, "-G", host], capture_output=True, text=True, check=False,
                               stdin=subprocess.DEVNULL).stdout.splitlines()
    except OSError as error:
        raise click.UsageError(f"ranks of {host} are started by ssh, which cannot be started here: "
                               f"{(error.strerror or '').lower()}") from None
    bounds = [bound for line, bound in BOUNDS.items() if line in known]
    return (*words, *(word for option in ("BatchMode=yes", *bounds) for word in ("-o", option)),
            host)
