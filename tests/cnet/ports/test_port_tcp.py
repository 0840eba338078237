"""The tcp port by itself; what its connections do is in tests/cnet/engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.c_programs import build, library, run

if TYPE_CHECKING:
    from pathlib import Path


def test_a_peer_is_heard_before_strangers_take_its_place(tmp_path: Path) -> None:
    run(build(tmp_path / "test", ["tests/cnet/ports/test_port_tcp.c", str(library())]))
