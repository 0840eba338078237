"""Provenance of figures: the day, the commit and the machine that they come from."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def stamp() -> dict[str, str]:
    """Return the day (UTC, ISO 8601), the commit that is checked out, and the machine.

    A commit ends in "+" where files differ from it; it is "unknown" without a checkout.
    """
    described = subprocess.run(["git", "describe", "--always", "--exclude=*", "--dirty=+"],
                               cwd=ROOT, capture_output=True, text=True,
                               check=False).stdout.strip()
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        found = None
    model = found[1] if found else platform.machine()
    kernel = platform.release().partition("-")[0]  # what distributions add says nothing of speed
    return {"date": datetime.now(timezone.utc).date().isoformat(), "commit": described or "unknown",
            "machine": f"{model}, {os.cpu_count()} CPUs, Linux {kernel}"}


def dated(*, measured: bool) -> str:
    """Return a page's sentence about its figures; a machine counts only if they were measured."""
    now = stamp()
    machine = f", {now['machine']}" if measured else ""
    return f"Figures of {now['date']}, commit {now['commit']}{machine}.\n"
