"""Groups of gloo's collectives, out of the flight recorder's notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.schema import Problem
from sim.traces.flight_recorder import groups_of_calls
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


ZERO_NS = 10**18


def groups(notes: list[tuple[float, str]], calls: list[tuple[float, float]]) -> dict[int, str]:
    """Groups of calls between two times, by notes of a time and a group; times in us."""
    document = {"entries": [{"time_created_ns": ZERO_NS + round(1000 * time),
                             "process_group": [name, "described"]} for time, name in notes]}
    return groups_of_calls(document, "abc", ZERO_NS, [
        (number, start, end) for number, (start, end) in enumerate(calls)])


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from("abc")), max_size=6),
       st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted), max_size=4))
def test_a_call_has_the_one_group_that_is_noted_within_it(notes, calls) -> None:
    found = groups(notes, calls)
    for number, (start, end) in enumerate(calls):
        within = {name for time, name in notes if start <= time <= end}
        assert {found[number]} == within if len(within) == 1 else number not in found


def test_notes_need_not_be_in_order() -> None:
    assert groups([(9, "b"), (1, "a")], [(0, 2), (8, 9)]) == {0: "a", 1: "b"}


def test_a_group_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(Problem, match="holds a call of the group 'd'") as caught:
        groups([(1, "d")], [])
    assert caught.value.allowed == "groups of the same job: a, b, c"
