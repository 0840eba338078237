"""The HOROVOD_* variables that have an effect, with Horovod's defaults.

>>> Settings.from_env({"HOROVOD_CYCLE_TIME": "0.5"}).cycle_s
0.0005
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harp.lightcc.fusion import HOROVOD_BYTES, HOROVOD_CYCLE_S

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = tuple(f"HOROVOD_{name}" for name in (
    "FUSION_THRESHOLD", "CYCLE_TIME", "TIMELINE", "TIMELINE_MARK_CYCLES", "STALL_CHECK_DISABLE",
    "STALL_CHECK_TIME_SECONDS", "STALL_SHUTDOWN_TIME_SECONDS", "START_TIMEOUT", "AUTOTUNE",
    "AUTOTUNE_LOG", "AUTOTUNE_STEPS_PER_SAMPLE", "AUTOTUNE_WARMUP_SAMPLES"))
"""Variables that are read; others of Horovod change nothing."""
DYNAMIC = "DYNAMIC"
"""HOROVOD_TIMELINE's word for a file that ``start_timeline`` names."""


@dataclass(frozen=True)
class Settings:
    """Settings of Horovod's runtime."""

    fusion_threshold_bytes: int = HOROVOD_BYTES
    """HOROVOD_FUSION_THRESHOLD"""
    cycle_s: float = HOROVOD_CYCLE_S
    """HOROVOD_CYCLE_TIME, given in milliseconds: rank 0 waits so long for more tensors."""
    timeline: str = ""
    """HOROVOD_TIMELINE: the file, or `DYNAMIC`."""
    mark_cycles: bool = False
    """HOROVOD_TIMELINE_MARK_CYCLES"""
    stall_s: float = 60.0
    """HOROVOD_STALL_CHECK_TIME_SECONDS: after this long rank 0 names missing ranks; 0 is never."""
    stall_end_s: float = 0.0
    """HOROVOD_STALL_SHUTDOWN_TIME_SECONDS: after so long the group fails; 0 is never."""
    start_timeout_s: float = 600.0
    """HOROVOD_START_TIMEOUT: all ranks must have come in this time."""
    autotune: bool = False
    """HOROVOD_AUTOTUNE"""
    autotune_log: str = ""
    """HOROVOD_AUTOTUNE_LOG"""
    autotune_steps: int = 10
    """HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE: decisions for one measurement."""
    autotune_warmup: int = 3
    """HOROVOD_AUTOTUNE_WARMUP_SAMPLES: measurements that do not count."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Read them. Raises ValueError in one sentence."""
        off = env.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in {"", "0"}
        return cls(
            int(_read_number(env, "FUSION_THRESHOLD", HOROVOD_BYTES)),
            _read_number(env, "CYCLE_TIME", HOROVOD_CYCLE_S * 1e3) / 1e3,
            env.get("HOROVOD_TIMELINE", ""),
            bool(_read_number(env, "TIMELINE_MARK_CYCLES", 0)),
            0.0 if off else _read_number(env, "STALL_CHECK_TIME_SECONDS", 60),
            0.0 if off else _read_number(env, "STALL_SHUTDOWN_TIME_SECONDS", 0),
            _read_number(env, "START_TIMEOUT", 600),
            bool(_read_number(env, "AUTOTUNE", 0)),
            env.get("HOROVOD_AUTOTUNE_LOG", ""),
            max(1, int(_read_number(env, "AUTOTUNE_STEPS_PER_SAMPLE", 10))),
            int(_read_number(env, "AUTOTUNE_WARMUP_SAMPLES", 3)))

    def of_meeting(self, number: int) -> Settings:
        """Give the files of a job's later groups names of their own: each group begins them anew.

        >>> Settings(timeline="runs/t.json").of_meeting(2).timeline
        'runs/t.2.json'
        """
        if number < 2:
            return self
        timeline = self.timeline
        return replace(self, autotune_log=_number_file(self.autotune_log, number),
                       timeline=timeline if timeline == DYNAMIC else _number_file(timeline, number))


def _number_file(path: str, number: int) -> str:
    named = Path(path)
    return str(named.with_name(f"{named.stem}.{number}{named.suffix}")) if path else ""


def _read_number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(f"HOROVOD_{name}", "")
    try:
        found = float(text) if text else default
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise ValueError(f"HOROVOD_{name} is {text!r}; allowed is a number, 0 or more")
    return found
