"""Hosts near one another, from round trips alone: drawn with noise, and between kernel routers."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from harp.cli.main import harp
from harp.routing.affinity import place_hosts
from harp.routing.path_plan import PlanError
from harp.routing.rtt_clusters import cluster_hosts, from_json, matrix, to_json
from harp.routing.templates import Endpoints, SwitchHash, Wires, leaf_spine
from lab.namespace import why_unusable
from lab.veth import End, veth_pair
from lab.wiring import Wiring
from tests.support.cluster_files import topology, write
from tests.support.levels import long_except
from tests.support.ring_crossings import ring_crossings

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

root_only = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


def drawn(place: Ints, base_us: Floats, noise: float, rng: np.random.Generator) -> Floats:
    """Round trips: a base by the finest place that two hosts share, more by noise either way.

    Noise is one-sided, as that of the least of many is, and each direction has its own; each host
    is slower than the others by as much again.
    """
    shared = (place[:, None, :] == place[None, :, :]).sum(axis=2)
    slow = rng.exponential(noise / 4, len(place))
    found = base_us[shared] * (1 + rng.exponential(noise, shared.shape))
    found *= 1 + slow[:, None] + slow[None, :]
    np.fill_diagonal(found, np.nan)
    return found * 1e-6


def is_same_partition(one: Ints, other: Ints) -> bool:
    pairs = set(zip(one.tolist(), other.tolist(), strict=True))
    return len(pairs) == len(set(one.tolist())) == len(set(other.tolist()))


def three_tiers(rng: np.random.Generator, hosts: int = 32) -> Ints:
    """Pod and ToR of each host, in any order; each ToR has two hosts at least."""
    tor = np.concatenate([np.repeat(np.arange(8), 2), rng.integers(0, 8, hosts - 16)])
    tor = rng.permutation(tor)
    return np.column_stack([tor // 4, tor])


@pytest.mark.parametrize(("clusters", "noise", "least"), long_except(
    [(20, 0.0, 1.0), (60, 0.0, 1.0), (60, 0.02, 1.0), (60, 0.05, 0.95)], (20, 0.0, 1.0)))
def test_pods_and_tors_are_found_in_spite_of_noise(
        clusters: int, noise: float, least: float) -> None:
    """Of clusters whose pods are half as far again, and others' pods as far once more."""
    right, base_us = 0, np.array([22.0, 14.0, 9.0])
    for seed in range(clusters):
        rng = np.random.default_rng(seed)
        place = three_tiers(rng)
        found = cluster_hosts(drawn(place, base_us, noise, rng))
        good = found.place.shape[1] == 2 and all(
            is_same_partition(found.place[:, level], place[:, level]) for level in range(2))
        right += good
        if good:
            order = place_hosts(found.place)
            assert ring_crossings(place, order) == (2, 8)
            assert found.sure > 0.2
    assert right >= least * clusters


def test_one_level_is_one_level() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        tor = rng.permutation(np.repeat(np.arange(4), 5))[:, None]
        found = cluster_hosts(drawn(tor, np.array([15.0, 9.0]), 0.03, rng))
        assert found.place.shape[1] == 1
        assert is_same_partition(found.place[:, 0], tor[:, 0])


def test_where_all_are_alike_nothing_is_made_up() -> None:
    alone = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        found = cluster_hosts(drawn(np.zeros((16, 1), np.int64), np.array([9.0, 9.0]), 0.03, rng))
        alone += found.place.shape[1] == 0
    assert alone >= 57


@pytest.mark.parametrize("hosts", [1, 2])
def test_few_hosts_have_no_groups(hosts: int) -> None:
    found = cluster_hosts(np.full((hosts, hosts), 1e-5))
    assert found.place.shape == (hosts, 0)
    assert found.sure == 0.0


def test_a_pair_that_was_measured_one_way_is_enough() -> None:
    rng = np.random.default_rng(1)
    tor = np.repeat(np.arange(3), 4)[:, None]
    both = drawn(tor, np.array([15.0, 9.0]), 0.02, rng)
    found = cluster_hosts(np.where(np.tri(12, k=-1), both, np.nan))
    assert is_same_partition(found.place[:, 0], tor[:, 0])
    both[3, 7] = both[7, 3] = np.nan
    with pytest.raises(PlanError, match="hosts 3 and 7 were measured in neither direction"):
        cluster_hosts(both)


def test_files_of_hosts_become_a_matrix() -> None:
    text = to_json("10.0.0.1", {"10.0.0.2": 8e-6, "10.0.0.9": 1e-5})
    assert from_json(text) == ("10.0.0.1", {"10.0.0.2": 8e-6, "10.0.0.9": 1e-5})
    found = matrix([["10.0.0.1", "10.1.0.1"], ["10.0.0.2"]],
                   [from_json(text), ("10.1.0.1", {"10.0.0.2": 7e-6})])
    assert found[0, 1] == 7e-6
    assert np.isnan(found[1, 0])


NO_FILES = {"": "it is not a file of harp probe", '{"format": "x"}': "its format is 'x'",
            '{"format": "harp-latency-1", "source": "a", "round_trip_us": {"b": -1}}':
            r"round_trip_us.b is -1: a number from 0.001 to 6e\+07 is possible"}


@pytest.mark.parametrize("text", NO_FILES)
def test_a_path_that_is_no_file_is_one_sentence(text: str) -> None:
    with pytest.raises(PlanError, match=NO_FILES[text]):
        from_json(text)


# ---- between real kernels


def run(*words: object) -> Any:
    return CliRunner().invoke(harp, [str(word) for word in words])


@pytest.mark.long
@root_only
def test_probes_distinguish_hosts_of_two_leaves(tmp_path: Path) -> None:
    """A leaf-spine of Linux routers; the job's file says one switch, and hosts stand mixed.

    Spines are far away: two of their cables delay a round trip by several times what it takes.
    """
    wires = Wires(1e9, 1e-6, SwitchHash("linux", seed=5))
    fabric = leaf_spine(Endpoints.uniform(6, bps=1e9), leaves=2, spines=2, wires=wires)
    mixed = [0, 3, 1, 4, 2, 5]
    with closing(Wiring(fabric, 1.0, 1500)) as wiring, ExitStack() as cables:
        for link, near in enumerate(fabric.link_dst.tolist()):
            if near < len(fabric.switches) and fabric.switches[near].startswith("spine"):
                end = End(wiring.switches[near], f"l{link ^ 1}", "", "", "")
                cables.enter_context(end.late(50))
        addresses = [wiring.address(host) for host in mixed]
        for number, host in enumerate(mixed):
            others = [address for address in addresses if address != addresses[number]]
            with wiring.hosts[host].entered():
                done = run("probe", "--latency", *others, "--source", addresses[number],
                           "-o", tmp_path / f"lat-{number}.json")
            assert done.exit_code == 0, done.stderr
            assert len(done.stderr.splitlines()) == 5
    write(tmp_path, topology(hosts=6), "top.yaml")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({
        "topology": "top.yaml", "order": "near",
        "addresses": {f"h-{number}/eth0": address for number, address in enumerate(addresses)},
        "latencies": [f"lat-{number}.json" for number in range(6)]}))
    done = run("plan", tmp_path / "job.yaml")
    assert done.exit_code == 0, done.stderr
    assert "latencies: 2 groups of hosts that are near" in done.stderr
    hosts = [int(rank["host"][2:]) for rank in json.loads(done.stdout)["ranks"]]
    leaves = [mixed[host] // 3 for host in hosts]
    assert sum(one != other for one, other in zip(leaves, leaves[1:] + leaves[:1],
                                                  strict=True)) == 2


@root_only
def test_a_host_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    with veth_pair() as (near, far), near.space.entered():
        done = run("probe", "--latency", far.ipv4, "--source", near.ipv4)
        assert done.exit_code == 0, done.stderr
        assert from_json(done.stdout)[0] == near.ipv4
        done = run("probe", "--latency", "203.0.113.9", "--source", near.ipv4)
        assert done.exit_code == 1
        assert "Network is unreachable" in done.stderr


def test_latencies_of_a_job_that_do_not_fit(tmp_path: Path) -> None:
    write(tmp_path, topology(hosts=3), "top.yaml")
    job = {"topology": "top.yaml", "order": "near", "latencies": ["a.json"],
           "addresses": {f"h-{host}/eth0": f"10.0.0.{host + 1}" for host in range(3)}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "a.json").write_text(to_json("10.0.0.1", {"10.0.0.2": 1e-5}))
    done = run("plan", tmp_path / "job.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "latencies: hosts 0 and 2 were measured in neither direction" in done.stderr
    (tmp_path / "a.json").write_text("{}")
    done = run("plan", tmp_path / "job.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "a.json: it is not a file of harp probe" in done.stderr
