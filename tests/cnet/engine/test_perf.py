"""The measuring loops of `harp perf`: over a connection, and over a socket of kernel TCP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.c_programs import run
from tests.cnet.engine.engine_programs import engine_program

if TYPE_CHECKING:
    from pathlib import Path


def test_both_ends_of_a_run_move_all_messages(tmp_path: Path) -> None:
    run(engine_program(tmp_path, "test_perf"))


def test_both_ends_of_a_socket_move_all_messages(tmp_path: Path) -> None:
    run(engine_program(tmp_path, "test_perf_tcp"))
