"""All-to-alls over many ranks: the same times with less work, which is counted and not clocked."""

from __future__ import annotations

from contextlib import closing

import pytest

from harp.collectives.registry import make_plan
from sim.answer.collective_bench import Timer
from sim.cluster.cluster import Cluster
from sim.cluster.placement import choose_gpus, place
from sim.network.flow import flow_communicator
from sim.network.flow.flow_network import EDGES_AN_EVENT
from sim.schema import load
from sim.schema.parameters import load_stack
from tests.support import ROOT

RANKS = 64


@pytest.fixture(scope="module")
def made() -> Cluster:
    """Eight hosts of eight GPUs on a fabric whose hashes collide."""
    path = ROOT / "topologies" / "clos3-1024.yaml"
    return Cluster(load(path, ["hosts[0].count=8", "fabric.pods=4", "fabric.leaves=2",
                               "fabric.aggs=2", "fabric.cores=4",
                               *(f"scenarios[{number}].gpus=[64]" for number in range(8))]))


def timer(made: Cluster) -> Timer:
    topology = made.topology
    gpus = choose_gpus(made, range(made.hosts), made.gpus, affinity=True)
    return Timer(made, load_stack("kernel-tcp", topology.stacks), topology.scenarios[0],
                 place(made, gpus, 16, affinity=True))


def exchange(nbytes: int):
    return make_plan("alltoall", ranks=RANKS, nbytes=nbytes)


@pytest.mark.parametrize("part", [100, 1000])
def test_routes_made_by_parts_are_the_same(made, part, monkeypatch) -> None:
    with closing(timer(made)) as whole:
        wanted = whole.seconds(exchange(1 << 22))
    monkeypatch.setattr(flow_communicator, "PART", part)
    with closing(timer(made)) as parts:
        assert parts.seconds(exchange(1 << 22)) == wanted


def test_a_second_size_takes_no_flows_and_the_time_that_it_would_take(made) -> None:
    sizes = [1 << 22, 1 << 25, 1 << 28]
    with closing(timer(made)) as known:
        times = [known.seconds(exchange(size)) for size in sizes]
        solved = known.network.fluid.net.effort()  # type: ignore[attr-defined]
        with closing(timer(made)) as first:
            first.seconds(exchange(sizes[0]))
            assert first.network.fluid.net.effort() == solved  # type: ignore[attr-defined]
    for size, found in zip(sizes, times, strict=True):
        with closing(timer(made)) as alone:
            assert alone.seconds(exchange(size)) == pytest.approx(found, rel=1e-9)


def test_blocks_in_other_proportions_are_simulated(made) -> None:
    """Some blocks are an element longer than others."""
    with closing(timer(made)) as known:
        known.seconds(exchange(1 << 22))
        solved = known.network.fluid.net.effort()  # type: ignore[attr-defined]
        known.seconds(exchange((1 << 22) + 4))
        assert known.network.fluid.net.effort() > solved  # type: ignore[attr-defined]


def test_an_exchange_costs_a_few_events_a_pair(made) -> None:
    """Each pair is one flow (NCCL gives it one channel at this size), handled three times."""
    with closing(timer(made)) as counted:
        counted.seconds(exchange(1 << 22))
        pairs = RANKS * (RANKS - 1)
        assert counted.network.effort * EDGES_AN_EVENT <= 3 * pairs + EDGES_AN_EVENT
        solutions, visits = counted.network.fluid.net.effort()  # type: ignore[attr-defined]
        assert visits <= 40 * pairs
        assert solutions <= pairs


def test_memory_of_routes_is_that_of_one_part(made, monkeypatch) -> None:
    """No array of rows (edge, resource) is longer than a part's, however many edges there are."""
    most = 0
    found = flow_communicator.FlowCommunicator._build_by_parts

    def watched(self, edges):
        inner = self.transport.paths

        def paths(*arguments):
            nonlocal most
            made_paths = inner(*arguments)
            most = max(most, made_paths.edges)
            return made_paths

        monkeypatch.setattr(self.transport, "paths", paths)
        return found(self, edges)

    monkeypatch.setattr(flow_communicator, "PART", 512)
    monkeypatch.setattr(flow_communicator.FlowCommunicator, "_build_by_parts", watched)
    with closing(timer(made)) as parts:
        parts.seconds(exchange(1 << 22))
    assert 0 < most <= 512


def test_a_plan_of_many_ranks_is_laid_once_unless_it_is_an_all_to_all() -> None:
    """A step has a ring for many buckets; an all-to-all of 1,024 ranks has a million edges."""
    for name, same in (("ring", True), ("alltoall", False)):
        plan = make_plan(name, ranks=128, nbytes=1 << 20)
        first, again = (next(iter(flow_communicator._layout(plan))) for _ in range(2))
        assert (first[0] is again[0]) == same
