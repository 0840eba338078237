"""Groups of ranks that communicate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.schema.parallel_keys import Parallel
from sim.step.groups import Groups
from tests.sim.step.test_mixture import ELEMENTS, run, workload


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("split", [{"tensor": 4}, {"tensor": 2}, {"shard": "hsdp"}])
def test_copies_stay_on_their_rail(tmp_path, split, channels):
    """Each copy of a share is on the same GPUs of all hosts, so no byte crosses a spine."""
    steps_s = []
    for rate in ("1Mbps", "100Gbps"):
        fabric = {"template": "rail", "hosts_per_leaf": 4, "spines": 1, "rate": rate,
                  "latency": "0s"}
        job, _ = run(tmp_path, gpus=4, hosts=4, nic={"count": 4}, fabric=fabric,
                     scenario={"channels": channels, "parallel": split}, **workload())
        steps_s.append(job.steps_s)
    assert steps_s[0] == steps_s[1]


def test_ranks_are_numbered_as_megatron_does():
    groups = Groups(Parallel(tensor=2, context=2, pipeline=2), 16, 4)
    assert [list(ranks) for ranks in groups.of("tensor")] == [[0, 1], [2, 3]]
    assert [list(ranks) for ranks in groups.of("context")] == [[0, 2], [1, 3]]
    assert [list(ranks) for ranks in groups.of("replicas")] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [list(ranks) for ranks in groups.of("stages")] == [[0, 8], [1, 9], [2, 10], [3, 11]]
    apart = Groups(Parallel(tensor=8), 16, 4)
    assert [list(ranks) for ranks in apart.of("tensor")] == [list(range(8))]
    assert [list(ranks) for ranks in apart.of("replicas")] == [[n, n + 8] for n in range(8)]
    assert (apart.each("tensor"), apart.each("replicas")) == (4, 1)
    wide = Groups(Parallel(tensor=2, context=4), 16, 4)
    assert [list(ranks) for ranks in wide.of("context")] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def leaves(rate):
    return {"template": "leaf-spine", "leaves": 2, "spines": 1, "rate": rate, "latency": "0s"}


def test_sends_of_all_hosts_share_what_lies_between_two_leaves(tmp_path):
    """Four hosts below a leaf send to four below the other, by a link of one NIC's rate in turns.

    So each micro-step's send forward and that back take four times as long.
    """
    def step_s(rate, micro):
        return run(tmp_path, 1, hosts=8, rate_bps=1e9, fabric=leaves(rate),
                   **workload(accumulation=micro), scenario={"parallel": {"pipeline": 2}})[1].step_s

    narrow_s, wide_s = (step_s(rate, 8) - step_s(rate, 4) for rate in ("1Gbps", "4Gbps"))
    assert narrow_s - wide_s == pytest.approx(4 * 2 * 3 * 4 * ELEMENTS * 8 / 1e9, rel=0.01)


@pytest.mark.parametrize("split", [{"tensor": 2}, {"context": 2}])
def test_a_group_that_crosses_leaves_holds_the_others_up(tmp_path, split):
    """Of pairs of six hosts, three below a leaf, the second crosses; the first does not."""
    slow, fast = (run(tmp_path, 1, hosts=6, rate_bps=1e9, fabric=leaves(rate), **workload(),
                      scenario={"parallel": split})[1] for rate in ("100Mbps", "10Gbps"))
    assert slow.step_s > 2 * fast.step_s
    assert slow.breakdown.compute_s == pytest.approx(fast.breakdown.compute_s)
    assert slow.limits[0].name == "fabric"


def test_of_many_pairs_some_name_what_holds_them_back(tmp_path):
    """Of 20 hosts that send by one link every second is watched; averages hide the last of eight
    sends."""
    _, result = run(tmp_path, 1, hosts=40, rate_bps=1e9, fabric=leaves("1Gbps"),
                    **workload(accumulation=4), scenario={"parallel": {"pipeline": 2}})
    sends = next(limit for limit in result.limits if limit.name == "fabric")
    assert sends.seconds == pytest.approx(7 * 20 * 4 * ELEMENTS * 8 / 1e9, rel=0.01)


def test_groups_that_leave_their_hosts_are_all_there_where_they_share_switches():
    groups = Groups(Parallel(tensor=8, pipeline=2), 64, 4, beside=True)
    assert [list(ranks) for ranks in groups.of("tensor")] == [
        list(range(first, first + 8)) for first in (0, 8, 16, 24)]
    assert groups.of("stages") == [(rank, rank + 32) for rank in range(32)]
    inside = Groups(Parallel(tensor=4), 64, 4, beside=True)
    assert [list(ranks) for ranks in inside.of("tensor")] == [[0, 1, 2, 3]]


POWERS = st.sampled_from([1, 2, 4])


@given(POWERS, POWERS, POWERS, POWERS, POWERS)
def test_each_rank_of_a_stage_is_in_one_group_of_a_kind(tensor, context, pipeline, data, host):
    """Replicas and copies of experts cover the stage; groups within hosts cover the first one."""
    layout = Parallel(tensor=tensor, context=context, pipeline=pipeline)
    groups = Groups(layout, tensor * context * pipeline * data, tensor * host)
    for kind, ranks in (("replicas", groups.stage), ("expert copies", groups.stage),
                        ("copies", groups.stage), ("tensor", groups.local),
                        ("context", max(groups.local, tensor * context))):
        members = [rank for group in groups.of(kind) for rank in group]
        assert sorted(members) == list(range(ranks)), kind
        assert {len(group) for group in groups.of(kind)} == {groups.size(kind)}, kind
    assert groups.size("tensor") == tensor
    assert groups.size("context") == context
    assert groups.size("replicas") == groups.stage // tensor
    assert groups.each("tensor") == min(tensor, groups.host)
