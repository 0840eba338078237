"""Background traffic: what comes is what was asked for, and both stacks have what it leaves."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import simpy

from harp.collectives.registry import make_plan
from sim.answer.collective_bench import measure
from sim.answer.scenario import Settings
from sim.network.background import SIZES, arrivals, segment_bytes
from sim.network.fidelity import make_network
from sim.network.interface import NetworkError, Site
from sim.network.lab.lab_refusals import check_site
from sim.network.transport import Style, Transport
from sim.records.timeline_track import Timeline
from sim.schema import TopologyError
from sim.schema.parameters import load_stack
from tests.support.cluster_files import cluster
from tests.support.levels import long
from tests.support.sim_runs import run_all

if TYPE_CHECKING:
    from pathlib import Path

    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario

RATE_BPS = 10e9
FREE_TCP = {"base": "kernel-tcp", "cost_per_byte": "0s", "cost_per_packet": "0s",
            "cost_per_message": "0s", "start_latency": "0s", "flow_rate": "1000Gbps",
            "memory_per_byte": 0, "deviation": 1.0}
FREE_HARP = FREE_TCP | {"base": "harp"}


def beside(folder: Path, *, load: float = 0.3, hosts: int = 3, rate_bps: float = RATE_BPS,
           scenario: dict[str, Any] | None = None, source: dict[str, Any] | None = None,
           **top: Any) -> Cluster:
    """Hosts with background traffic from h-2 to h-1."""
    sources = [{"name": "web", "senders": ["h-2"], "receivers": ["h-1"], "load": load}
               | (source or {})]
    return cluster(folder, hosts=hosts, rate_bps=rate_bps, background=sources,
                   stacks={"tcp": FREE_TCP, "harp-free": FREE_HARP},
                   scenario={"stack": "tcp", "background": ["web"]} | (scenario or {}), **top)


def transport_of(made: Cluster, seed: int | None = None) -> Transport:
    return Transport(made, load_stack("tcp", made.topology.stacks), Style(congestion="cubic"), seed)


def send(made: Cluster, fidelity: str, stack: str, nbytes: int) -> float:
    """Seconds in which h-0 sends so much to h-1, beside the background."""
    env = simpy.Environment()
    network = make_network(fidelity, env, Site(
        made, load_stack(stack, made.topology.stacks),
        Style.of(made.topology.scenarios[0], made.topology, stack),
        background=made.topology.background))
    plan, spans = make_plan("broadcast", ranks=2, nbytes=nbytes), []
    env.run(env.process(network.communicator().run(
        plan, [np.arange(2)], lambda _: 0.0, Timeline(env, spans.append, "h-0"))))
    return float(env.now)


def offered_bytes(made: Cluster, seconds: float) -> float:
    """On the lines, by then."""
    transport = transport_of(made)
    payload, headers = segment_bytes(transport)
    flows = arrivals(transport, made.topology.background[0], 0)
    total = 0
    while (flow := next(flows)).at_ns * 1e-9 < seconds:
        total += flow.nbytes
    return total * (payload + headers) / payload


@pytest.mark.parametrize(("sizes", "mean", "median", "bound"), [
    ("web-search", 1.711e6, 73e3, 0.08), ("data-mining", 12.66e6, 1100, 0.25)])
def test_offered_load_is_the_one_asked_for(tmp_path: Path, sizes: str, mean: float, median: float,
                                           bound: float) -> None:
    assert SIZES[sizes].mean == pytest.approx(mean, rel=1e-3)
    made = beside(tmp_path, source={"sizes": sizes, "senders": ["h-0", "h-2"]})
    transport = transport_of(made)
    payload, headers = segment_bytes(transport)
    flows = list(islice(arrivals(transport, made.topology.background[0], 0), 20_000))
    sent = sum(flow.nbytes for flow in flows) * (payload + headers) / payload
    share = sent * 8e9 / flows[-1].at_ns / (2 * RATE_BPS)
    assert share == pytest.approx(0.3, rel=bound)  # four standard deviations
    assert np.median([flow.nbytes for flow in flows]) == pytest.approx(median, rel=0.05)
    assert {flow.dst for flow in flows} == {1}
    senders = np.bincount([flow.src for flow in flows], minlength=3)
    assert senders[1] == 0
    assert senders[0] == pytest.approx(senders[2], rel=0.06)


def test_same_seed_gives_the_same_flows_and_another_one_others(tmp_path: Path) -> None:
    made = beside(tmp_path)
    source = made.topology.background[0]
    one, again, other = (list(islice(arrivals(transport_of(made, seed), source, 0), 100))
                         for seed in (1, 1, 2))
    assert one == again != other


@long
def test_fluid_leaves_a_long_flow_what_the_mean_load_leaves_of_the_line(tmp_path: Path) -> None:
    """M/G/1 with processor sharing and one customer that stays: it gets 1 - load (Kelly, 1979)."""
    nbytes = 30 * 10**9
    alone, shared = (send(beside(tmp_path, load=load), "flow", "tcp", nbytes)
                     for load in (1e-6, 0.3))
    assert alone / shared == pytest.approx(0.7, rel=0.03)


@pytest.mark.parametrize("routing", ["ecmp", "spray"])
@pytest.mark.parametrize(("fidelity", "stack"), [
    ("flow", "tcp"), ("packet", "tcp"), ("packet", "harp-free")])
def test_transfer_takes_what_the_background_leaves(tmp_path: Path, fidelity: str,
                                                   stack: str, routing: str) -> None:
    """The line is full until the transfer ends; what was offered last is still under way then."""
    nbytes = 200 * 10**6
    ways = {"scenario": {"routing": routing},
            "fabric": {"template": "leaf-spine", "leaves": 3, "spines": 2, "latency": "1us"}}
    alone_s = send(beside(tmp_path, load=1e-6, **ways), fidelity, stack, nbytes)
    made = beside(tmp_path, **ways)
    took_s = send(made, fidelity, stack, nbytes)
    beside_s = offered_bytes(made, took_s) * 8 / RATE_BPS
    assert beside_s > 0.1 * alone_s
    assert alone_s + 0.7 * beside_s < took_s < 1.05 * (alone_s + beside_s)


def test_tcp_over_packets_takes_what_it_takes_as_a_fluid(tmp_path: Path) -> None:
    made = beside(tmp_path, load=0.5)
    flow_s, packet_s = (send(made, fidelity, "tcp", 200 * 10**6) for fidelity in ("flow", "packet"))
    assert packet_s == pytest.approx(flow_s, rel=0.05)


@pytest.mark.parametrize("fidelity", ["flow", "packet"])
def test_background_slows_a_job_down_the_same_way_each_time(tmp_path: Path, fidelity: str) -> None:
    made = beside(tmp_path, load=0.6, scenario={"gpus": [2], "steps": 2},
                  workload={"model": "resnet50", "batch": 8, "framework": "free"})
    (scenario,) = made.topology.scenarios
    quiet = scenario.model_copy(update={"background": ()})
    (alone,), (one,), (again,) = (run_all(made, [each], Settings(fidelity=fidelity))
                                  for each in (quiet, scenario, scenario))
    assert one.step_s == again.step_s > 1.1 * alone.step_s
    (other,) = run_all(made, [scenario], Settings(fidelity=fidelity, seed=7))
    assert other.step_s != one.step_s


@pytest.mark.parametrize("fidelity", ["flow", "packet"])
def test_background_slows_a_timed_collective_and_all_algorithms_alike(tmp_path: Path,
                                                                      fidelity: str) -> None:
    made = beside(tmp_path, load=0.6)
    (scenario,) = made.topology.scenarios
    quiet = scenario.model_copy(update={"background": ()})

    def times(scenario: Scenario, algorithms: list[str]) -> list[float]:
        report = measure(made, "allreduce", [4096, 40 << 20], scenario=scenario,
                         settings=Settings(fidelity=fidelity), algorithms=algorithms)
        return [row.time_s for row in report.rows if row.size_bytes > 4096]

    both = times(scenario, ["tree", "ring"])
    assert times(scenario, ["ring"]) == both[1:]
    assert all(took > 1.1 * alone for took, alone in zip(both, times(quiet, ["tree", "ring"]),
                                                         strict=True))


@pytest.mark.parametrize("fidelity", ["flow", "packet"])
def test_background_goes_around_a_link_that_is_down(tmp_path: Path, fidelity: str) -> None:
    """Flows that wait for the link get through, and then there are times without a flow."""
    made = beside(tmp_path, hosts=4, rate_bps=1e9,
                  source={"senders": ["h-0"], "receivers": ["h-3"]},
                  fabric={"template": "leaf-spine", "leaves": 2, "spines": 2, "latency": "1us"})
    env = simpy.Environment()
    network = make_network(fidelity, env, Site(
        made, load_stack("tcp", made.topology.stacks), Style(congestion="cubic"),
        background=made.topology.background))
    links = made.fabric.links_between("leaf0", "spine0")
    network.scale(np.where(np.isin(np.arange(len(made.fabric.link_src)), links), 0.0, 1.0))
    env.run(0.5)
    assert network.busy
    network.avoid(links)
    env.run(2.0)
    while network.busy and env.now < 6.0:
        env.step()
    assert not network.busy


def test_laboratory_refuses_background_traffic(tmp_path: Path) -> None:
    made = beside(tmp_path)
    site = Site(made, load_stack("tcp", made.topology.stacks), Style(),
                background=made.topology.background)
    with pytest.raises((TopologyError, NetworkError), match=r"background traffic|--fidelity lab"):
        check_site(site, 0.01)
