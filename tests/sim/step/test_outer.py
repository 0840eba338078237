"""Rare synchronisation: times of rounds against arithmetic, and repeated steps against all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from harp.lightcc.outer_policy import OuterPolicy
from sim.answer.scenario import Run
from sim.run import main
from sim.workloads.models import get_model
from tests.support.cluster_files import ALPHA_S, FREE, RATE_BPS, cluster, topology, write

if TYPE_CHECKING:
    from pathlib import Path

    from sim.records.results import ScenarioResult

N = get_model("vgg16").parameters
B = RATE_BPS / 8
DIRECT = {"allreduce": "halving-doubling"}
METHODS: dict[str, dict[str, Any]] = {
    "local-sgd": {"every": 6, "outer": "local-sgd"},
    "diloco": {"every": 6},
    "streaming": {"every": 6, "outer": "streaming", "fragments": 3, "delay": 2},
    "sparseloco": {"every": 6, "outer": "sparseloco", "fragments": 2, "delay": 1}}


def run(tmp_path: Path, sync: dict[str, Any] | None, **given: Any) -> ScenarioResult:
    keys = {} if sync is None else {"sync": sync}
    built = cluster(tmp_path, scenario=keys | given.pop("scenario", {}), **given)
    (result,) = Run(built, built.topology.scenarios[0], built.gpus).go()
    return result


def alone(tmp_path: Path, **given: Any) -> float:
    """A step of one island by itself."""
    return run(tmp_path, None, hosts=1, **given).step_s


def ring_s(ranks: int, nbytes: float, shared: int = 1) -> float:
    """Time of a ring by Patarasuk and Yuan (2009), on a line that ``shared`` rings share."""
    return 2 * (ranks - 1) * (ALPHA_S + nbytes * shared / ranks / B)


def test_a_round_of_diloco_is_its_steps_and_an_average(tmp_path):
    for hosts, every in ((2, 10), (4, 30)):
        found = run(tmp_path, {"every": every}, hosts=hosts).step_s
        wanted = alone(tmp_path) + ring_s(hosts, 4 * N) / every
        assert found == pytest.approx(wanted, rel=2e-3)


def test_gpus_of_a_host_send_a_share_each(tmp_path):
    """So the line carries as much as with one GPU; each gathers the others' shares over NVLink."""
    found = run(tmp_path, {"every": 10}, hosts=2, gpus=4).step_s
    gather_s = 3 / 4 * 4 * N / 100e9
    wanted = alone(tmp_path, gpus=4) + (ring_s(2, 4 * N / 4, shared=4) + gather_s) / 10
    assert found == pytest.approx(wanted, rel=2e-3)


def test_transfers_hidden_by_compute_cost_nothing(tmp_path):
    sync = {"every": 10, "outer": "streaming", "fragments": 2, "delay": 2}
    result = run(tmp_path, sync, hosts=2)
    assert 2 * alone(tmp_path) > ring_s(2, 4 * N)
    assert result.step_s == pytest.approx(alone(tmp_path), rel=1e-9)
    assert result.breakdown.exposed_s == pytest.approx(0, abs=1e-9)


def test_longer_transfers_are_waited_for(tmp_path):
    """One fragment a round, at a hundredth of the rate: it is late by its time less the delay."""
    sync = {"every": 10, "outer": "streaming", "delay": 2}
    result = run(tmp_path, sync, hosts=2, rate_bps=RATE_BPS / 100)
    late_s = 2 * (ALPHA_S + 4 * N / 2 / (B / 100)) - 2 * alone(tmp_path)
    assert late_s > 0
    assert result.step_s == pytest.approx(alone(tmp_path) + late_s / 10, rel=2e-3)
    assert result.breakdown.exposed_transfer_s == pytest.approx(late_s / 10, rel=2e-3)
    assert result.limits[0].name == "NIC"


def test_sparse_messages_go_to_all(tmp_path):
    """An allgather: each island receives the others' messages, whose size the policy says."""
    message = OuterPolicy("sparseloco", 2).message_bytes(N)
    found = run(tmp_path, {"every": 2, "outer": "sparseloco"}, hosts=4,
                rate_bps=RATE_BPS / 100).step_s
    wanted = alone(tmp_path) + 3 * (ALPHA_S + message / (B / 100)) / 2
    assert found == pytest.approx(wanted, rel=2e-3)


def test_topk_chunk_and_bits_are_the_policy_s(tmp_path):
    sync = {"every": 2, "outer": "sparseloco", "topk": 128, "chunk": 1024, "bits": 8}
    message = OuterPolicy("sparseloco", 2, keep=128, chunk=1024, bits=8).message_bytes(N)
    found = run(tmp_path, sync, hosts=2, rate_bps=RATE_BPS / 100).step_s
    assert found == pytest.approx(alone(tmp_path) + (ALPHA_S + message / (B / 100)) / 2, rel=2e-3)


def test_few_bits_travel_as_the_policy_says(tmp_path):
    """Two exchanges of parts with all others at once, of ``bits`` and a scale each 256."""
    for bits in (8, 4, 2):
        message = OuterPolicy("diloco", 2, bits=bits).message_bytes(N)
        assert message == pytest.approx(N * (bits / 8 + 4 / 256), rel=1e-6)
        found = run(tmp_path, {"every": 2, "bits": bits}, hosts=4, rate_bps=RATE_BPS / 100,
                    scenario=DIRECT).step_s
        exchange_s = ALPHA_S + 3 / 4 * message / (B / 100)
        assert found == pytest.approx(alone(tmp_path) + 2 * exchange_s / 2, rel=2e-3)


def test_few_bits_go_round_a_ring_if_the_scenario_says_so(tmp_path):
    """Each link carries as much, but hop by hop; sums of three parts are encoded on the way."""
    def at(cast: str) -> float:
        return run(tmp_path, {"every": 2, "bits": 8}, hosts=4, rate_bps=RATE_BPS / 100,
                   frameworks={"free": FREE | {"cast_per_element": cast}},
                   scenario={"allreduce": "ring"}).step_s

    message = OuterPolicy("diloco", 2, bits=8).message_bytes(N)
    wanted = alone(tmp_path) + 6 * (ALPHA_S + message / 4 / (B / 100)) / 2
    assert at("0s") == pytest.approx(wanted, rel=2e-3)
    outer = 8 * N + 20 * N + 32 * N + 12 * N + 8 * N
    coded = N * (13 + 3 / 4 * (2 * 9 + 13) + 9)
    assert at("6e-12s") - at("0s") == pytest.approx(1e-12 * (outer + coded) / 2, rel=0.01)


def test_encoding_and_adding_a_difference_take_the_memorys_time(tmp_path):
    """As for LIGHT_BITS: all, what comes for a part, the part's mean, and all means."""
    def at(cast: str) -> float:
        return run(tmp_path, {"every": 2, "bits": 8}, hosts=4, scenario=DIRECT, frameworks={
            "free": FREE | {"cast_per_element": cast}}).step_s

    outer = 8 * N + 20 * N + 32 * N + 12 * N + 8 * N
    wanted = 1e-12 * (outer + N * (13 + 9 + 13 / 4 + 9)) / 2
    assert at("6e-12s") - at("0s") == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_passes_over_memory_and_selection_are_counted(tmp_path, method):
    """By the table of the module, at 6 B of traffic in 3 ns, and 1 ns an element selected."""
    framework = FREE | {"cast_per_element": "3ns", "selection_per_element": "1ns"}
    sync = METHODS[method]
    given = {"hosts": 2, "frameworks": {"free": framework}}
    free = run(tmp_path, sync, hosts=2)
    found = run(tmp_path, sync, **given)
    traffic = 8 * N + 20 * N + 12 * N + (12 if sync.get("delay") else 8) * N
    if method in ("diloco", "streaming"):
        traffic += 32 * N
    selected = 0
    if method == "sparseloco":
        traffic += 28 * N + 2 * 16 * N
        selected = N
    late_s = (traffic * 0.5e-9 + selected * 1e-9) / sync["every"]
    # The wait for transfers under way is shorter.
    assert found.step_s == pytest.approx(
        free.step_s + late_s, abs=free.breakdown.exposed_transfer_s + 1e-6)
    assert found.breakdown.selection_s == pytest.approx(selected * 1e-9 / sync["every"])


@pytest.mark.parametrize("method", METHODS)
def test_repeated_steps_are_what_all_of_them_would_be(tmp_path, monkeypatch, method):
    given = {"hosts": 3, "gpus": 2, "rate_bps": RATE_BPS / 20, "frameworks": {
        "free": FREE | {"cast_per_element": "0.01ns", "slowdown": 1.1, "jitter": 0.02}}}
    few = run(tmp_path, METHODS[method], **given)
    monkeypatch.setattr(Run, "_repeats", lambda _: False)
    every = run(tmp_path, METHODS[method], **given)
    assert few.step_s == pytest.approx(every.step_s, rel=1e-9)
    assert few.breakdown.exposed_s == pytest.approx(every.breakdown.exposed_s, rel=1e-6, abs=1e-9)
    assert few.effort <= every.effort
    for result in (few, every):
        assert result.breakdown.step_s == pytest.approx(result.step_s)
        assert sum(limit.seconds for limit in result.limits) == pytest.approx(result.step_s,
                                                                              rel=1e-6)


def test_a_round_costs_no_more_work_the_longer_it_is(tmp_path):
    efforts = [run(tmp_path, {"every": every}, hosts=2).effort for every in (10, 1000)]
    assert efforts[1] <= efforts[0]


def test_the_breakdown_is_the_step_s_own_length(tmp_path):
    """Clocks and accounts agree: the simulated time of a round is the sum of its parts."""
    built = cluster(tmp_path, hosts=2, gpus=2, rate_bps=RATE_BPS / 20, scenario={
        "sync": METHODS["streaming"]}, frameworks={"free": FREE | {"cast_per_element": "0.01ns"}})
    made = Run(built, built.topology.scenarios[0], 4)
    made.go()
    (job,) = made.jobs
    for (start_s, end_s), breakdown in zip(job.steps_s, job.breakdowns, strict=True):
        assert breakdown.step_s == pytest.approx(end_s - start_s)


def test_one_host_is_one_island_that_meets_nobody(tmp_path):
    assert run(tmp_path, {"every": 3}, hosts=1, gpus=4).step_s == pytest.approx(
        alone(tmp_path, gpus=4))


def test_the_row_says_what_it_does_not_say(tmp_path):
    (note,) = run(tmp_path, {"every": 6, "outer": "sparseloco"}, hosts=2, gpus=4).notes
    state_mb = 8 * N / 4 / 1e6
    assert f"keep {state_mb:,.0f} MB on each GPU" in note
    assert "equal speed is not equal loss" in note


def test_the_outer_state_counts_as_memory(tmp_path):
    """Anchor and momentum of a GPU's share, beside what its island needs."""
    given = {"workload": {"model": "bert-base", "batch": 8, "framework": "free"}, "gpus": 4}
    own = run(tmp_path, None, hosts=1, **given).memory
    found = run(tmp_path, {"every": 5}, hosts=2, **given).memory
    assert own is not None
    assert found is not None
    share = -(-get_model("bert-base").parameters // 4)
    assert found.total - own.total == 8 * share


@pytest.mark.parametrize("parallel", ["fsdp", {"tensor": 2}])
def test_islands_may_split_the_model(tmp_path, parallel):
    given = {"workload": {"model": "bert-base", "batch": 8, "framework": "free"},
             "scenario": {"parallel": parallel}, "gpus": 4}
    found = run(tmp_path, {"every": 5}, hosts=2, **given).step_s
    own = alone(tmp_path, **given)
    nbytes = 4 * get_model("bert-base").parameters
    assert found == pytest.approx(
        own + (ring_s(2, nbytes / 4, shared=4) + 3 / 4 * nbytes / 100e9) / 5, rel=1e-2)


@pytest.mark.parametrize(("given", "says"), [
    ({"gpus": 4, "scenario": {"parallel": {"pipeline": 8}}, "workload": {
        "model": "bert-base", "batch": 8}}, "is no part of an island of 4"),
])
def test_islands_that_cannot_be_are_refused(tmp_path, given, says):
    scenario = given.pop("scenario", {}) | {"sync": {"every": 5}}
    done = CliRunner().invoke(main, [str(write(tmp_path, topology(scenario=scenario, **given)))])
    assert done.exit_code == 2
    assert says in done.output
