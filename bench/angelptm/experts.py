"""Two shaped hosts of two ranks that send tokens to experts (`experts_rank.py`), and their bounds.

The bound is the time in which the busiest port, one way, carries each token once to the host that
wants it and each sum back, as payload of TCP at an MTU of 1500. The simulator has the same plans
on the same hosts (`experts.yaml`).
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.arms import Bench, Sample
from bench.lightcc.lightcc_rows import Ranks, free_port, popen, sampled
from harp.angelptm.tokens import Places, chunk_bounds
from harp.collectives.alltoallv import combine, dispatch
from harp.collectives.choice import Rates, choose
from lab.veth import veth_pair
from sim.answer.scenario import Settings
from sim.answer.timer import Timer
from sim.cluster.cluster import Cluster
from sim.cluster.placement import choose_gpus, place
from sim.schema import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from bench.comparison import Arms
    from harp.collectives.blocks import Blocks
    from harp.collectives.collective_plan import Plan

TOKENS, WIDTH, TOP_K, EXPERTS = 512, 1024, 8, 64
"""Tokens of a rank; a token is 4 KiB."""
HOSTS = (0, 0, 1, 1)
RATE_BPS = 400e6
GOODPUT = 1448 / 1514
"""Payload of a TCP segment with timestamps over its Ethernet frame (RFC 7323, RFC 894)."""
CHUNKS, TIMES = 4, 4


def choices(rank: int, *, zipf: bool) -> NDArray[np.int64]:
    """Draw the experts of a rank's tokens: all alike, or the n-th with a weight of 1 / n.

    Without replacement, by the largest of weights times exponential noise (Gumbel's trick).
    """
    weights = 1 / np.arange(1, EXPERTS + 1) if zipf else np.ones(EXPERTS)
    noise = np.random.default_rng(rank).gumbel(size=(TOKENS, EXPERTS))
    return np.argsort(-(np.log(weights) + noise), axis=1)[:, :TOP_K]


def chunk_blocks(row_bytes: int, *, zipf: bool) -> list[Blocks]:
    """Give the blocks of each chunk, as the layer makes them."""
    places = Places(EXPERTS, HOSTS)
    found = []
    for start, end in chunk_bounds(TOKENS, CHUNKS):
        rows = np.stack([places.sort(choices(rank, zipf=zipf)[start:end])[1]
                         for rank in range(len(HOSTS))])
        found.append(places.blocks(rows, row_bytes))
    return found


def bound_s(*, zipf: bool) -> float:
    """Time of the busiest port, one way."""
    port, host = np.zeros((2, 2)), np.array(HOSTS)
    for blocks in chunk_blocks(4 * WIDTH, zipf=zipf):
        there, back = (make(blocks, "once-per-host", HOSTS) for make in (dispatch, combine))
        for plan in (there, back):
            for phase in plan.phases():
                np.add.at(port, (host[phase.src], host[phase.dst]), phase.bytes_per_edge)
    return float(8 * max(port[0, 1], port[1, 0]) / (RATE_BPS * GOODPUT))


def layer_plans(*, zipf: bool) -> list[Plan]:
    """Give the plans of a call of the layer, there and back."""
    rates = Rates(port_bytes_s=RATE_BPS / 8)
    ways = (dispatch, 4 * (WIDTH + 2 * TOP_K)), (combine, 4 * WIDTH)
    return [make(blocks, choose(make, blocks, HOSTS, rates), HOSTS, 4)
            for make, row_bytes in ways for blocks in chunk_blocks(row_bytes, zipf=zipf)]


def simulated_s(*, zipf: bool) -> float:
    """The simulator's time of these plans, one after the other."""
    topology = load(Path(__file__).with_name("experts.yaml"))
    cluster, scenario = Cluster(topology), topology.scenarios[0]
    gpus = choose_gpus(cluster, range(cluster.hosts), cluster.gpus, affinity=scenario.affinity)
    timer = Timer(cluster, Settings().stack(topology, scenario.stack), scenario,
                  place(cluster, gpus, 1, affinity=scenario.affinity))
    return sum(timer.seconds(plan) for plan in layer_plans(zipf=zipf))


@contextmanager
def two_hosts(bench: Bench) -> Iterator[Arms]:
    """Two namespaces of two ranks each."""
    del bench
    with veth_pair() as ends:
        for end in ends:
            end.congestion("cubic")
            end.shape(RATE_BPS)
        first, second = ends
        port = free_port(first.space, first.ipv4)
        ranks = Ranks([popen(
            end.space, sys.executable, "-m", "bench.angelptm.experts_rank", RANK=rank,
            WORLD_SIZE=len(HOSTS), MASTER_ADDR=first.ipv4, MASTER_PORT=port, OMP_NUM_THREADS=1,
            GLOO_SOCKET_IFNAME=end.device, HARP_IFNAME=end.device)
            for rank, end in enumerate([first, first, second, second])])

        def arm(do: str, value: Callable[[float], float], **more: Any) -> Callable[[], Sample]:
            def take() -> Sample:
                answers = ranks.ask(do=do, times=TIMES, **more)
                return sampled(answers, value(answers[0]["seconds"] / TIMES))
            return take

        def per_second(seconds: float) -> float:
            return 1e-3 * TOKENS * len(HOSTS) / seconds

        def ms(seconds: float) -> float:
            return 1e3 * seconds

        yield {"HARP": arm("harp", per_second, zipf=False),
               "gloo, a copy an expert": arm("gloo_expert", per_second, zipf=False),
               "gloo, a copy a rank": arm("gloo_rank", per_second, zipf=False),
               "HARP, Zipf": arm("harp", ms, zipf=True),
               "HARP, direct": arm("harp", per_second, zipf=False, way="direct"),
               "busiest port": partial(_fixed, ms, partial(bound_s, zipf=True)),
               "HARP, plans": arm("plans", ms, zipf=False),
               "simulator": partial(_fixed, ms, partial(simulated_s, zipf=False)),
               "simulator, Zipf": partial(_fixed, ms, partial(simulated_s, zipf=True))}


def _fixed(unit: Callable[[float], float], seconds: Callable[[], float]) -> Sample:
    return Sample(unit(seconds()))
