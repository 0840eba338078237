"""The plugin in a process of its own: its devices, ports and lines, by settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from lab.c_programs import PLAIN
from lab.namespace import Namespace, why_unusable
from lab.nccl_pair import harp
from tests.support import PATIENCE_S, ROOT

SAYS = ROOT / "tests" / "support" / "plugin_says.py"
root_only = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
INVALID_USAGE, SYSTEM_ERROR = 5, 2


def ask(*wishes: str, before: tuple[str, ...] = (), **settings: str) -> dict[str, Any]:
    """The plugin's lines with these settings and no others."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("HARP_", "NCCL_"))}
    kept["HARP_CONF_FILE"] = settings.pop("HARP_CONF_FILE", "/dev/null")
    done = subprocess.run([*before, sys.executable, str(SAYS), str(harp(PLAIN)), *wishes],
                          env={**kept, **settings}, capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def warnings(found: dict[str, Any]) -> list[str]:
    return [text for level, text in found["said"] if level == "warn"]


def names(found: dict[str, Any]) -> list[str]:
    return [device["name"] for device in found["devices"]]


def add_links(space: Namespace, *links: str) -> None:
    for number, link in enumerate(links):
        space.run("ip", "link", "add", link, "type", "veth", "peer", f"peer{number}")
        space.run("ip", "address", "add", f"10.77.{number}.1/24", "dev", link)
        space.run("ip", "link", "set", link, "up")
        space.run("ip", "link", "set", f"peer{number}", "up")  # who has no address is no device
