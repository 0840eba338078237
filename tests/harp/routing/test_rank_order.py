"""The order of ranks: never worse than random, lexical or any other, by ring; and what trees take.

The fabrics and the simulated all-reduces are those of bench/routing/rank_order.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.routing import rank_order
from harp.cli.main import harp
from harp.routing.affinity import (
    endpoint_places,
    ordered_places,
    place_hosts,
    tree_load,
)
from tests.support.cluster_files import topology, write
from tests.support.levels import draws, long
from tests.support.ring_crossings import ring_crossings

if TYPE_CHECKING:
    from pathlib import Path


@st.composite
def placements(draw: st.DrawFn, most: int) -> np.ndarray:
    pod_and_tor = st.tuples(st.integers(0, 2), st.integers(0, 3))
    rows = draw(st.lists(pod_and_tor, min_size=1, max_size=most))
    return np.array([(pod, 10 * pod + tor) for pod, tor in rows])


@settings(deadline=None, max_examples=draws(30))
@given(placements(most=6))
def test_no_order_of_hosts_makes_a_better_ring(place: np.ndarray) -> None:
    order = place_hosts(place)
    assert sorted(order.tolist()) == list(range(len(place)))
    crossings = ring_crossings(place, order)
    for other in permutations(range(len(place))):
        assert all(own <= theirs for own, theirs in zip(
            crossings, ring_crossings(place, np.array(other)), strict=True))


@settings(deadline=None, max_examples=draws(30))
@given(placements(most=40))
def test_among_the_best_rings_trees_load_the_fullest_places_least(place: np.ndarray) -> None:
    """No more than hosts sorted by their places do, from wherever one begins."""
    plain = ordered_places(place)
    assert tree_load(place, place_hosts(place)) <= min(
        tree_load(place, np.roll(plain, -start)) for start in range(len(plain)))


@pytest.mark.parametrize("name", rank_order.FABRICS)
def test_a_ring_in_this_order_is_never_slower_and_crosses_no_more(name: str) -> None:
    """Bytes above ToRs, and completion with planned and with hashed paths, in the simulator."""
    fabric, nics = rank_order.FABRICS[name]
    cluster = rank_order.build(fabric, nics, 32)
    for seed in range(4):
        found = rank_order.compare(cluster, "ring", 4, seed)
        best = np.min([found["lexical"], found["best random"]], axis=0)
        assert (np.array(found["near"]) <= best * (1 + 1e-9)).all(), (seed, found)


@pytest.mark.parametrize("name", rank_order.FABRICS)
def test_trees_gain_as_well(name: str) -> None:
    fabric, nics = rank_order.FABRICS[name]
    found = rank_order.compare(rank_order.build(fabric, nics, 64), "tree", 4)
    assert found["near"].tor_bytes < found["lexical"].tor_bytes < found["random"].tor_bytes
    assert found["near"].planned_s <= found["lexical"].planned_s * (1 + 1e-9)
    assert found["near"].planned_s < 0.9 * found["random"].planned_s


def test_a_plan_keeps_the_ranks_of_a_host_together(tmp_path: Path) -> None:
    """Also where its NICs are on different leaves, as rails are."""
    write(tmp_path, topology(hosts=8, gpus=2, nic={"count": 2}, fabric={
        "template": "rail", "hosts_per_leaf": 4, "spines": 2}), "top.yaml")
    addresses = {f"h-{host}/eth{nic}": f"10.9.{nic}.{host + 1}"
                 for host in range(8) for nic in range(2)}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(
        {"topology": "top.yaml", "addresses": addresses, "order": "near"}))
    done = CliRunner().invoke(harp, ["plan", str(tmp_path / "job.yaml")])
    assert done.exit_code == 0, done.stderr
    hosts = [rank["host"] for rank in json.loads(done.stdout)["ranks"]]
    assert hosts[::2] == hosts[1::2]
    assert len(set(hosts)) == 8
    groups = [int(host[2:]) // 4 for host in hosts[::2]]
    assert sum(one != other for one, other in zip(groups, groups[1:] + groups[:1],
                                                  strict=True)) == 2


def test_places_of_a_rail_fabric_are_groups_of_hosts() -> None:
    cluster = rank_order.build({"template": "rail", "hosts_per_leaf": 4, "spines": 2}, 2, 8)
    place = endpoint_places(cluster.fabric, np.arange(0, 16, 2))
    assert len(set(place[:, -2].tolist())) == 2


@long
def test_the_table_ends_with_a_hierarchical_alltoall_that_crosses_less_and_is_faster() -> None:
    done = subprocess.run([sys.executable, "-m", "bench", "rank-order", "--json",
                           "--draws", "1"], capture_output=True, text=True, check=False,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 3 * 2 * 4 + 2
    assert all(row["tor_bytes"] > 0 and row["planned_s"] > 0 for row in rows)
    flat, hierarchical = rows[-2:]
    assert set(rank_order.Outcome._fields) == {"tor_bytes", "planned_s", "hashed_s"}
    assert all(hierarchical[what] < 0.9 * flat[what] for what in ("tor_bytes", "planned_s"))
    assert hierarchical["hashed_s"] < flat["hashed_s"]  # one draw of ports: by how much is luck
