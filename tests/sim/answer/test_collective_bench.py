"""Collectives that have the network to themselves take what their alpha-beta formulas say.

N ranks, S bytes, alpha the latency of a message, B a port's bytes a second; g ranks a host and M
hosts, alpha1 and B1 within a host. The formulas are written down here from the literature:
ring Patarasuk and Yuan 2009, trees Sanders, Speck and Träff 2009, halving-doubling Thakur,
Rabenseifner and Gropp 2005 (all-to-all as well), 2D Jia et al. 2018, hierarchical all-to-all Hwang
et al. 2023.
"""

from __future__ import annotations

from math import ceil, floor, log2

import numpy as np
import pytest

from harp.collectives.registry import make_plan
from sim.answer.timer import Timer
from sim.cluster.placement import choose_gpus, place
from sim.schema.parameters import load_stack
from tests.support.cluster_files import ALPHA_S, RATE_BPS, cluster, topology
from tests.support.levels import long
from tests.support.max_plus import Pipe, arrivals

B = RATE_BPS / 8
ALPHA1_S, B1 = 1e-6, 100e9
SLOT_BYTES = 512 << 10
SMALL_FRAMES = {"template": "single-switch", "latency": "0s", "mtu": "256B"}
"""A switch forwards one of these in no time; test_message_paths.py has larger ones."""
SIZES = [8 << (3 * n) for n in range(10)] + [4 << 30]


def pipelined_ring_s(steps, message, alpha_s, rate):
    """Cut a message into pieces of a slot, and the ring into loops of four pieces a step.

    Each of the pieces waits for the bytes before it, or its step for the one before it.
    """
    loops = max(1, ceil(message / (4 * SLOT_BYTES)))
    pieces = max(1, ceil(message / loops / SLOT_BYTES))
    step_s, steps = message / loops / rate, steps * loops
    return max(alpha_s + steps * step_s,
               steps * (alpha_s + step_s / pieces) + step_s * (1 - 1 / pieces))


def ring_s(n, size):
    return pipelined_ring_s(2 * (n - 1), size / n, ALPHA_S, B)


def half_ring_s(n, size):
    return pipelined_ring_s(n - 1, size / n, ALPHA_S, B)


def tree_chunks(size, hops):
    """Chunks of half of a size, by NCCL's rule: the deeper the tree, the smaller they are."""
    chunk = SLOT_BYTES
    for times, least in ((8, 128 << 10), (4, 64 << 10), (1, 32 << 10)):
        while size / chunk < times * hops and chunk > least:
            chunk /= 2
    return np.maximum(1, np.ceil(size / 2 / chunk))


def tree_s(n, size):
    depth = floor(log2(n - 1)) + 1
    chunks = tree_chunks(size, depth)
    chunk = size / 2 / chunks
    return 2 * depth * (ALPHA_S + 2 * chunk / B) + (chunks - 1) * 4 * chunk / B


def broadcast_s(n, size):
    depth = floor(log2(n - 2)) + 1
    chunks = tree_chunks(size, depth // 2 + 1)
    return (depth + 1) * ALPHA_S + (depth + chunks) * size / chunks / B


def halving_doubling_s(n, size):
    power = 1 << floor(log2(n))
    inner = 2 * log2(power) * ALPHA_S + 2 * (power - 1) / power * size / B
    return inner + (2 * (ALPHA_S + size / B) if n > power else 0)


def alltoall_s(n, size):
    return ALPHA_S + (n - 1) / n * size / B


def two_level_s(g, m, size):
    return (2 * pipelined_ring_s(g - 1, size / g, ALPHA1_S, B1)
            + pipelined_ring_s(2 * (m - 1), size / g / m, ALPHA_S, B / g))


def hierarchical_s(g, m, size):
    return ALPHA1_S + (g - 1) / g * size / B1 + ALPHA_S + (m - 1) / m * g * size / B


def timer(folder, **given):
    """Time plans over all GPUs of a cluster, by default of equal hosts under one switch."""
    made = cluster(folder, **{"fabric": SMALL_FRAMES} | given)
    scenario = made.topology.scenarios[0]
    gpus = choose_gpus(made, range(made.hosts), made.gpus, affinity=scenario.affinity)
    placement = place(made, gpus, scenario.channels, affinity=scenario.affinity)
    stack = load_stack(scenario.stack, made.topology.stacks)
    return Timer(made, stack, scenario, placement)


def measured(timer, plan, ranks, sizes, group=None):
    return np.array([timer.seconds(make_plan(plan, ranks=ranks, nbytes=size, group=group,
                                             chunk_bytes=size)) for size in sizes])


FLAT = {"ring": ring_s, "reduce-scatter": half_ring_s, "allgather": half_ring_s, "tree": tree_s,
        "broadcast": broadcast_s, "halving-doubling": halving_doubling_s, "alltoall": alltoall_s}
LEAST = {"tree": 4, "broadcast": 5}
"""Ranks from which a formula holds: smaller trees are chains that use their ports less."""


def require_close(found, plan, ranks, sizes):
    """Within 1 %; a tree's roots have one child, so it is shorter by a few chunks at most."""
    wanted = np.array([FLAT[plan](ranks, size) for size in sizes])
    chunks = np.array([tree_chunks(size, 1) for size in sizes])
    spare_s = 4 * np.array(sizes) / 2 / chunks / B if plan in LEAST else 0.0
    assert (found <= wanted * 1.01).all(), plan
    assert (found >= wanted * 0.99 - spare_s).all(), plan


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 48, 100, 256])
def test_flat_collectives(tmp_path, ranks):
    clock = timer(tmp_path, hosts=ranks)
    for plan in FLAT:
        # An all-to-all of less than an element for each rank moves nothing between most of them.
        sizes = [size for size in SIZES if plan != "alltoall" or size >= 4 * ranks]
        if ranks >= LEAST.get(plan, 2):
            require_close(measured(clock, plan, ranks, sizes), plan, ranks, sizes)


@long
def test_flat_collectives_of_1024_ranks(tmp_path):
    clock = timer(tmp_path, hosts=1024)
    for plan in ("ring", "tree", "broadcast", "halving-doubling"):
        require_close(measured(clock, plan, 1024, SIZES), plan, 1024, SIZES)
    sizes = [4096, 1 << 24, 4 << 30]
    wanted = [alltoall_s(1024, size) for size in sizes]
    assert measured(clock, "alltoall", 1024, sizes) == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize(("gpus", "hosts"), [(2, 2), (8, 2), (4, 3), (8, 16), (8, 128)])
def test_two_level_collectives(tmp_path, gpus, hosts):
    clock = timer(tmp_path, hosts=hosts, gpus=gpus)
    ranks = gpus * hosts
    wanted = [two_level_s(gpus, hosts, size) for size in SIZES]
    assert measured(clock, "2d", ranks, SIZES, gpus) == pytest.approx(wanted, rel=0.01)
    if ranks <= 128:
        sizes = [size for size in SIZES if size >= 4 * ranks]
        wanted = [hierarchical_s(gpus, hosts, size) for size in sizes]
        times = measured(clock, "hierarchical-alltoall", ranks, sizes, gpus)
        assert times == pytest.approx(wanted, rel=0.01)


def uneven_ring_s(alpha_s, rate, size):
    """The recurrence for a ring all-reduce whose edges have these latencies and rates."""
    edges = len(rate)
    message = size / edges
    loops = max(1, ceil(message / (4 * SLOT_BYTES)))
    pieces = max(1, ceil(message / loops / SLOT_BYTES))
    piece = 2 * (edges - 1) / edges * size / (2 * (edges - 1) * loops * pieces)
    before = [[(edge - 1) % edges] for edge in range(edges)]
    return arrivals(Pipe(alpha_s, piece / np.array(rate), before, 2 * (edges - 1) * loops * pieces,
                         pieces, 8)).max()


@pytest.mark.parametrize(("gpus", "hosts"), [(8, 2), (4, 8), (8, 16)])
def test_a_tree_goes_over_hosts_and_down_their_chains(tmp_path, gpus, hosts):
    """NCCL's rule: twice (g - 1 hops inside + log2 of the hosts between), for short messages."""
    clock = timer(tmp_path, hosts=hosts, gpus=gpus)
    short, long = measured(clock, "tree", gpus * hosts, [8, 1 << 30], gpus)
    rule_s = 2 * ((gpus - 1) * ALPHA1_S + log2(hosts) * ALPHA_S)
    assert rule_s * 0.99 <= short <= rule_s + 2 * (log2(hosts) + 1) * ALPHA1_S
    # A host of two or more children sends S: half of it three times less its part as a leaf. NCCL's
    # table has 18.5 (two hosts) and 10 GB/s (more) on the bus for a NIC of this rate and such GPUs.
    ranks = gpus * hosts
    table = (18.5e9 if hosts == 2 else 10e9) * ranks / (2 * (ranks - 1))
    assert long == pytest.approx((1 << 30) / min(table, B / (1 if hosts == 2 else 2)), rel=0.02)


UNEVEN_SIZES = [64, 1 << 16, 1 << 20, 1 << 23, 1 << 26]


def test_a_flat_ring_over_hosts_of_several_gpus(tmp_path):
    """One edge in g leaves its host: its latency is paid once a host, or bytes hide it."""
    clock = timer(tmp_path, hosts=4, gpus=8)
    alpha_s, rate = ([inner] * 7 + [outer] for inner, outer in ((ALPHA1_S, ALPHA_S), (B1, B)))
    wanted = [uneven_ring_s(alpha_s * 4, rate * 4, size) for size in UNEVEN_SIZES]
    assert measured(clock, "ring", 32, UNEVEN_SIZES) == pytest.approx(wanted, rel=0.01)
    assert wanted[0] == pytest.approx(8 * ALPHA_S + 54 * ALPHA1_S, rel=0.01)


@pytest.mark.parametrize(("ranks", "moved"), [(2, 1.0), (3, 1.5)])
def test_small_trees_move_less(tmp_path, ranks, moved):
    """A chain's ranks have no second child: S for two ranks, 1.5 S for three (harp's manual)."""
    size = 1 << 30
    wanted = moved * size / B + 2 * ranks * ALPHA_S
    assert measured(timer(tmp_path, hosts=ranks), "tree", ranks, [size]) == pytest.approx(
        [wanted], rel=0.01)


def test_channels_share_a_port(tmp_path):
    """Channels split the bytes evenly and use one port together: no faster, and no slower."""
    one = measured(timer(tmp_path, hosts=8), "ring", 8, [1 << 30])
    four = measured(timer(tmp_path, hosts=8, scenario={"channels": 4}), "ring", 8, [1 << 30])
    assert four == pytest.approx(one, rel=1e-9)


def test_a_slow_edge_sets_the_rings_pace(tmp_path):
    """Of four hosts the last has a port of a quarter of the rate."""
    fast = topology()["hosts"][0] | {"name": "fast", "count": 3}
    slow = fast | {"name": "slow", "count": 1,
                   "nics": [{"name": "eth", "rate": f"{RATE_BPS / 4}bps"}]}
    rate = [B, B, B / 4, B / 4]
    wanted = [uneven_ring_s([ALPHA_S] * 4, rate, size) for size in UNEVEN_SIZES]
    clock = timer(tmp_path, hosts=[fast, slow])
    assert measured(clock, "ring", 4, UNEVEN_SIZES) == pytest.approx(wanted, rel=0.01)
    assert wanted[-1] == pytest.approx(2 * 3 * UNEVEN_SIZES[-1] / B, rel=0.01)
