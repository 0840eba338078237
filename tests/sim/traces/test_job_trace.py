"""Operations of a job's ranks, and their groups."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.schema import Problem
from sim.traces.job_trace import MOST_RANKS, JobTrace, named_groups

TRACE = JobTrace(((),) * 4, {"1": (0, 2)})


def test_the_group_of_all_ranks_has_two_names_and_all_ranks() -> None:
    for name in ("", "0"):
        assert TRACE.group(name) == "0"
        assert TRACE.members(name) == (0, 1, 2, 3)
    assert (TRACE.group("1"), TRACE.members("1")) == ("1", (0, 2))


@given(st.lists(st.tuples(st.text(max_size=4), st.lists(st.integers(0, MOST_RANKS - 1),
                                                        max_size=4)), max_size=4))
def test_groups_come_back_as_a_node_has_them(groups: list[tuple[str, list[int]]]) -> None:
    text = json.dumps([{"pg_name": name, "ranks": ranks, "backend": "nccl"}
                       for name, ranks in groups])
    assert named_groups(text) == groups


def test_a_name_may_be_a_number() -> None:
    assert named_groups('[{"pg_name": 7, "ranks": [1]}]') == [("7", [1])]


@pytest.mark.parametrize("given", [
    None, 3, "", "{", "[3]", '[{"ranks": [0]}]', '[{"pg_name": "1"}]',
    '[{"pg_name": "1", "ranks": [-1]}]', f'[{{"pg_name": "1", "ranks": [{MOST_RANKS}]}}]',
    '[{"pg_name": "1", "ranks": 0}]'])
def test_what_holds_no_groups_is_refused_with_their_form(given: object) -> None:
    with pytest.raises(Problem, match=r"^holds no groups: ") as caught:
        named_groups(given)
    assert caught.value.allowed == '[{"pg_name": "0", "ranks": [0, 1]}, ...]'
