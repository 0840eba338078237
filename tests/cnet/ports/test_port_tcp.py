"""The tcp port by itself; what its connections do is in tests/cnet/engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.c_programs import build, library, run

if TYPE_CHECKING:
    from pathlib import Path


def test_strangers_and_flows_that_are_given_up(tmp_path: Path) -> None:
    run(build(tmp_path / "test", ["tests/cnet/ports/test_port_tcp.c", str(library())]))


def test_a_stream_in_any_pieces_is_the_same_frames(tmp_path: Path) -> None:
    run(build(tmp_path / "test", ["tests/cnet/ports/test_port_tcp_stream.c", str(library())]))
