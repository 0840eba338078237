"""Groups of gloo's collectives, out of the flight recorder's notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.traces.test_pytorch import record_groups, replayed, with_groups

if TYPE_CHECKING:
    from pathlib import Path


def test_the_flight_recorder_names_the_groups_of_plain_collectives(tmp_path: Path) -> None:
    record_groups(tmp_path, "c10d")
    for rank in range(4):
        pair = str(1 + rank // 2)
        assert with_groups(tmp_path, rank) == [
            ("all-reduce", "0", 4096), ("all-reduce", pair, 8192), ("reduce-scatter", pair, 32),
            ("barrier", "0", 0)]
    assert replayed(tmp_path, 4)["total_us"] > 0
