"""Pacers of the laboratory: what a host has no hardware for takes its time, and no more."""

from __future__ import annotations

import pytest

from sim.network.lab.pace import EdgePace, Pacers

LINE_S = 1e-3
"""A byte on the line."""
THREAD = "thread"


def test_work_done_while_a_piece_came_delays_neither_it_nor_what_follows():
    pacers = Pacers()
    came_s = 100 * LINE_S
    assert pacers.catch_up(100, [(THREAD, LINE_S / 2)], "line", LINE_S, came_s) == came_s
    assert pacers.reserve(100, [(THREAD, LINE_S / 2)], came_s) == came_s


def test_a_thread_slower_than_the_line_delays_a_piece_by_the_difference():
    pacers = Pacers()
    done_s = pacers.catch_up(100, [(THREAD, 3 * LINE_S)], "line", LINE_S, 100 * LINE_S)
    assert done_s == pytest.approx(300 * LINE_S)


def test_no_time_of_a_thread_is_used_twice():
    pacers = Pacers()
    pacers.catch_up(100, [(THREAD, LINE_S)], "line", LINE_S, 100 * LINE_S)
    done_s = pacers.catch_up(100, [(THREAD, LINE_S)], "another", LINE_S, 100 * LINE_S)
    assert done_s == pytest.approx(200 * LINE_S)


def test_pieces_that_shared_a_line_were_worked_on_as_long_as_all_of_them_came():
    pacers = Pacers()
    for _ in range(3):
        now_s = 300 * LINE_S
        done_s = pacers.catch_up(100, [(THREAD, LINE_S)], "line", LINE_S, now_s)
        assert done_s == pytest.approx(now_s)


def test_a_piece_that_came_alone_did_not_come_before_its_time():
    pacers = Pacers()
    pacers.catch_up(100, [], "line", LINE_S, 200 * LINE_S)
    pacers.reserve(300, [(THREAD, LINE_S)], 0.0)
    done_s = pacers.catch_up(100, [(THREAD, LINE_S)], "line", LINE_S, 400 * LINE_S)
    assert done_s == pytest.approx(400 * LINE_S)


def test_only_time_since_a_piece_began_to_come_is_used_for_it():
    pacers = Pacers()
    pacers.reserve(100, [(THREAD, LINE_S)], 900 * LINE_S)
    done_s = pacers.catch_up(100, [(THREAD, LINE_S)], "line", LINE_S, 1000 * LINE_S)
    assert done_s == pytest.approx(1100 * LINE_S)


def test_messages_of_all_channels_are_handled_one_after_the_other():
    pacers = Pacers()
    ends_s = [pacers.handle("proxy", THREAD, 2.0, 10.0) for _ in range(3)]
    assert ends_s == [12.0, 14.0, 16.0]
    assert pacers.reserve(1, [(THREAD, 1.0)], 10.0) == 16.0


def test_a_message_does_not_wait_for_bytes_that_leave_later():
    pacers = Pacers()
    pacers.reserve(1000, [(THREAD, 1.0)], 0.0)
    assert pacers.handle("proxy", THREAD, 2.0, 10.0) == 12.0


@pytest.mark.parametrize(("nbytes", "frames"), [(100, 0.1), (1000, 1), (5000, 1)])
def test_a_frame_takes_its_time_on_each_link(nbytes, frames):
    pace = EdgePace((), (), 0.0, None, latency_s=7.0, ceiling_s=0.0, line_s=1e-3, links_s=4e-3,
                    frame_bytes=1000)
    assert pace.way_s(nbytes) == pytest.approx(7.0 + 4.0 * frames)
