"""The largest model that trains within a control group's limit of memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from bench.angelptm.peer import clear_stale_locks, environment, installed
from bench.arms import ROOT
from bench.peer_environment import last_line
from bench.subject import BenchError, PeerError
from lab.control_groups import control_group

SCRIPT = ROOT / "bench" / "angelptm" / "capacity.py"
LIMIT_BYTES, LAYER = 1536 << 20, 1024 ** 2
"""Of the group; parameters of a layer."""
LEAST_BYTES = 8
"""A parameter takes more than this, so that no model of more layers is tried."""
TRIAL_S = 300.0


def trains(name: str, layers: int, before: list[str]) -> str:
    """Train a model in a process of its own; gives what went wrong, or nothing."""
    python = sys.executable if name == "harp" else installed()
    clear_stale_locks()
    try:
        done = subprocess.run([*before, python, SCRIPT, name, str(layers)], text=True, cwd=ROOT,
                              capture_output=True, check=False, timeout=TRIAL_S,
                              env=None if name == "harp" else environment())
    except subprocess.TimeoutExpired:
        return f"no step was over after {TRIAL_S:.0f} s"
    return "" if "trained" in done.stdout.split() else last_line(done.stderr or done.stdout)


@cache
def largest(name: str) -> float:
    """Parameters, in millions, found by halving; what is compiled is so before."""
    if why := trains(name, 1, []):
        raise (BenchError if name == "harp" else PeerError)(why)
    most = str(LIMIT_BYTES)
    limits = {"memory.max": most, "memory.swap.max": "0"}, {"memory.limit_in_bytes": most}
    with tempfile.TemporaryDirectory() as folder, control_group(
            "memory", *limits, Path(folder)) as inside:
        fits, fails = 0, LIMIT_BYTES // (LEAST_BYTES * LAYER) + 1
        while fails - fits > 1:
            middle = (fits + fails) // 2
            fits, fails = (fits, middle) if trains(name, middle, inside) else (middle, fails)
    return fits * LAYER * 1e-6
