"""The search for NCCL's fastest choice at each size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harp.collectives.protocol import LL, SIMPLE
from harp.collectives.tuning import Tuning
from sim.answer.collective_bench import measure, parse_sizes
from sim.answer.nccl_tuning import Size, make_table, tune
from sim.cluster.cluster import Cluster
from sim.network.nccl import PLANS, Choice
from sim.schema import load
from tests.sim.test_tune import CLUSTERS, V100, nothing
from tests.support import ROOT
from tests.support.cluster_files import cluster

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_tuned_run_is_never_slower(tmp_path: Path, name: str) -> None:
    """At the sizes that were simulated, and within 3 % between them."""
    made = cluster(tmp_path, **CLUSTERS[name])
    grid = parse_sizes("8:256MiB:4")
    between = [size * 2 // 12 * 4 * 3 // 2 for size in grid[3:-1]]
    table = Tuning((tune(made, made.topology.scenarios[0], grid, 60, nothing).communicator,))
    faster = 0
    for collective in PLANS:
        for sizes, slack in ((grid, 1e-9), (between, 0.03)):
            rows = measure(made, collective, sizes, algorithms=("nccl", "tuned"), tuning=table).rows
            times = {(row.algorithm, row.size_bytes): row.time_s for row in rows}
            for size in sizes:
                assert times["tuned", size] <= times["NCCL", size] * (1 + slack), (collective, size)
                faster += times["tuned", size] < times["NCCL", size] * 0.97
    assert faster > 3


def test_limits_between_choices_are_searched() -> None:
    """Ring costs what its bytes cost, a tree something at first: they cross at 300 kB."""
    tree, ring = (Choice("tree", LL, 1.0), Choice("ring", SIMPLE, 1.0))

    def seconds(choice: Choice, nbytes: int) -> float:
        return (300e3 if choice.plan == "tree" else nbytes) + 1e6

    sizes = [Size(nbytes, tree, 9e9, best, seconds(best, nbytes))
             for nbytes, best in ((1 << 17, ring), (1 << 18, ring), (1 << 19, tree))]
    found = list(make_table("allreduce", V100, sizes, seconds))
    assert [(row.algorithm, row.min_bytes) for row in found] == [
        ("Ring", 1 << 17), ("Tree", found[0].max_bytes + 1)]
    assert found[0].max_bytes == pytest.approx(300e3, rel=0.1)
    assert found[1].max_bytes == 1 << 19


def test_shipped_files_can_be_tuned() -> None:
    """One with virtual NICs and bursts, one of several scenarios."""
    for name in ("cloud-vpc-25g-burst", "taco-vgg16-v100-25g"):
        made = Cluster(load(ROOT / "topologies" / f"{name}.yaml"))
        tuned = tune(made, made.topology.scenarios[-1], parse_sizes("1KiB:64MiB:16"), 60, nothing)
        assert all(size.gain >= 1 for sizes in tuned.sizes.values() for size in sizes)
