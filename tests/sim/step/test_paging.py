"""Steps whose states are in pages, against the plan and bounds worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harp.angelptm.page_plan import DEVICE, DISK, HOST, CapacityError, Job
from sim.schema.parameters import load_framework
from sim.step.compute import plan_pass
from sim.step.paging import Exchanges, Tiers, paged
from sim.step.recipe import Recipe
from sim.workloads.transformer import Transformer, build
from tests.support.cluster_files import topology, write
from tests.support.levels import long_except
from tests.support.sim_runs import rows_of

GPT = Transformer(8, 512, 8, 1024, bias="all", head="tied", positions=256)
MIB = 1 << 20
PARAMETERS = build(GPT, 256).parameters
FLOPS = 1e12
TIERS = Tiers(64 * MIB, 128 * MIB, 2048 * MIB, 5e9, 2e9, 4 * MIB, 1e9)
NEVER = 1e30


def recipe():
    return Recipe(build(GPT, 256), 4, load_framework("ddp", {}))


def waits(**changed):
    return total(paged(recipe(), FLOPS, replace(TIERS, **changed)))


def total(paging):
    return paging.end_s + sum(each.times * sum(each.forward_s + each.backward_s)
                              for each in paging.micro_steps)


def test_the_plan_moves_what_the_three_tiers_cannot_hold_at_once():
    plan = paged(recipe(), FLOPS, TIERS).plan
    assert {move.source[0] for move in plan.moves} == {DEVICE, HOST, DISK}
    chunks = [action.chunk for action in plan.actions if isinstance(action, Job)]
    assert sorted(chunks) == list(range(-(-PARAMETERS // MIB)))


def test_a_device_that_holds_all_waits_for_updates_alone():
    """Only the updates behind the last gradients are left: at the rate of the thread."""
    plan = paged(recipe(), FLOPS, replace(TIERS, device=1024 * MIB))
    assert not plan.plan.moves
    (waits_of,) = plan.micro_steps
    assert sum(waits_of.forward_s + waits_of.backward_s) == 0
    assert 0 < plan.end_s <= 4 * PARAMETERS / TIERS.update
    assert waits(device=1024 * MIB, update=NEVER) == pytest.approx(0, abs=1e-6)


def test_a_slow_disk_takes_its_bytes_over_its_rate():
    """Pages that no tier above holds are read and written once a step at least."""
    rate = 1e6
    least = 16 * PARAMETERS - TIERS.device - TIERS.host
    assert 2 * 0.9 * least / rate < waits(disk_rate=rate) < 2 * 3 * 16 * PARAMETERS / rate


@pytest.mark.parametrize("slows", [0.25, 1.0])
def test_updates_beside_computing_take_their_part_of_its_time(slows):
    """Where all is on the device there are no moves, and updates are left behind the end alone."""
    fast = waits(device=1024 * MIB)
    work_s = -(-PARAMETERS // MIB) * MIB / TIERS.update
    found = waits(device=1024 * MIB, slows=slows)
    computing_s = plan_pass(recipe(), FLOPS).compute_s
    assert 0 <= found - slows * work_s * computing_s / (computing_s + fast) <= fast
    assert waits(device=1024 * MIB, update=NEVER, slows=slows) == pytest.approx(0, abs=1e-6)


def test_moves_beside_computing_lengthen_it_by_what_they_take():
    """And where computing waits for them, they take nothing from it."""
    plain, slowed = (waits(slows=slows) for slows in (0.0, 0.5))
    plan = paged(recipe(), FLOPS, TIERS).plan
    copies = sum(move.copies and not move.by_disk for move in plan.moves)
    work_s = copies * TIERS.page / TIERS.copy + -(-PARAMETERS // MIB) * MIB / TIERS.update
    assert plain < slowed <= plain + 0.5 * work_s
    slow = {"copy": 1e6, "update": NEVER}
    assert waits(**slow, slows=0.5) == pytest.approx(waits(**slow), rel=0.01)


def shared(stage, accumulation=1, ranks=2, device=1024 * MIB):
    """Pages of several ranks whose network is so slow that a step waits for nothing else."""
    times = {"allgather": 3.0, "alltoall": 50.0}
    return paged(replace(recipe(), accumulation=accumulation), 1e18,
                 replace(TIERS, device=device, update=NEVER),
                 Exchanges(ranks, stage, lambda name, nbytes: times[name]))


@pytest.mark.parametrize(("stage", "accumulation", "reductions"), [
    (1, 1, 1), (2, 1, 1), (3, 1, 1), (1, 3, 1), (2, 3, 3), (3, 3, 3), (2, 10, 10)])
def test_ranks_gather_once_a_step_and_reduce_as_often_as_zero_does(stage, accumulation,
                                                                  reductions):
    """Where the device holds all, nothing is dropped before its update."""
    found = shared(stage, accumulation)
    shown = -(-4 * PARAMETERS // (4 * MIB))
    assert total(found) == pytest.approx(shown * (3 + 50 * reductions), rel=1e-3)


def test_zero_3_gathers_again_what_has_made_room():
    gathered = {}
    for stage in (2, 3):
        plan = shared(stage, device=48 * MIB).plan
        gathered[stage] = sum(move.gathers for move in plan.moves)
    shown = -(-4 * PARAMETERS // (4 * MIB))
    assert gathered[2] == shown < gathered[3] <= 2 * shown


def test_the_second_of_many_micro_steps_stands_for_the_others(monkeypatch):
    many = replace(recipe(), accumulation=6)
    few = paged(many, FLOPS, TIERS)
    assert [each.times for each in few.micro_steps] == [1, 4, 1]
    monkeypatch.setattr("sim.step.paging.MOST_MICRO_STEPS", 6)
    assert total(few) == pytest.approx(total(paged(many, FLOPS, TIERS)), rel=0.1)


def test_a_host_without_a_disk_needs_room_for_all():
    with pytest.raises(CapacityError, match="pages do not fit into 16 of the device, 32 of"):
        paged(recipe(), FLOPS, replace(TIERS, disk=0, disk_rate=0))


def file(tmp_path, offload, model=None, hosts=None, **given):
    plain = topology(workload={"model": model or {
        "layers": 2, "width": 64, "heads": 2, "vocabulary": 512}, "sequence": 32, "batch": 1,
        **given.pop("workload", {})})
    plain["hosts"][0] |= {"ram": "1GiB", "disk": {"capacity": "1GB", "read": "1GB/s"}} | (
        hosts or {})
    plain["scenarios"] = [plain["scenarios"][0] | {"offload": offload} | given]
    return write(tmp_path, plain)


SMALL = {"to": "disk", "device": "1MiB", "page": "64KiB"}


def test_a_step_waits_for_its_pages_and_says_so(tmp_path):
    row = rows_of(file(tmp_path, SMALL, hosts={"ram": "1MiB", "disk": {
        "capacity": "1GB", "read": "10MB/s"}}))[0]
    assert "page moves" in [limit["name"] for limit in row["limits"]]
    fast = rows_of(file(tmp_path, SMALL | {"device": "1GiB"}))[0]
    assert fast["step_ms"] < row["step_ms"]


@pytest.mark.parametrize("parallel", long_except(["data", "zero1", "zero2", "fsdp"], "fsdp"))
def test_what_ranks_exchange_takes_its_time_on_the_network(tmp_path, parallel):
    """A step that moves pages at a tenth of the rate is longer by far."""
    steps = []
    for rate in ("1Gbps", "10Gbps"):
        folder = tmp_path / rate
        folder.mkdir()
        path = file(folder, SMALL, parallel=parallel, workload={"accumulation": 4}, hosts={
            "nics": [{"name": "eth", "rate": rate}]})
        steps.append(rows_of(path)[-1]["step_ms"])
    assert steps[0] > 1.5 * steps[1]
