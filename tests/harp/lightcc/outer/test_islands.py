"""Islands: the groups of a rank, in a job of one."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from harp.lightcc.outer.islands import check_alike, make_islands


@pytest.mark.usefixtures("one_rank")
def test_a_rank_that_is_an_island_has_a_group_within_and_one_between():
    islands = make_islands(1, within="gloo", between="gloo")
    assert [dist.get_process_group_ranks(one)
            for one in (islands.within, islands.between)] == [[0], [0]]
    assert islands.within is not islands.between


@pytest.mark.usefixtures("one_rank")
def test_a_host_is_an_island_whatever_a_launcher_says(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    islands = make_islands(between="gloo")
    assert dist.get_process_group_ranks(islands.within) == [0]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("size", [2, 0, -1])
def test_ranks_that_cannot_be_divided_are_refused(size):
    with pytest.raises(ValueError, match=f"1 ranks cannot be divided into islands of {size}"):
        make_islands(size)


@pytest.mark.usefixtures("one_rank")
def test_an_island_agrees_with_itself():
    check_alike({"lr": 0.7, "every": 3}, None)
