"""A connection of an engine, as the application calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.c_programs import RACES, SANITIZED, run
from tests.cnet.engine.engine_programs import engine_program
from tests.support.levels import long

if TYPE_CHECKING:
    from pathlib import Path


def test_calls_are_refused_while_there_is_no_room_for_them(tmp_path: Path) -> None:
    run(engine_program(tmp_path, "test_connection"))


def test_a_connection_whose_peer_has_closed_can_still_be_accepted(tmp_path: Path) -> None:
    run(engine_program(tmp_path, "test_connection_accept"))


@pytest.mark.parametrize("flags", [SANITIZED, pytest.param(RACES, marks=long)],
                         ids=["asan", "tsan"])
def test_closing_an_end_drives_the_other_one_of_the_same_thread(
        tmp_path: Path, flags: list[str]) -> None:
    run(engine_program(tmp_path, "test_connection_drain", flags))
