"""Paths distinguished by delays: drawn queues, and kernel routers that answer no TTL expiry."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from dataclasses import replace
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.cli.main import harp
from harp.net.oneway import answer
from harp.routing import discovered
from harp.routing.fingerprint import find_classes
from harp.routing.templates import Endpoints, SwitchHash, Wires, leaf_spine
from lab.namespace import why_unusable
from lab.wiring import Wiring
from tests.support.beside import beside

if TYPE_CHECKING:
    import threading
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

root_only = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


def drawn(way: NDArray[np.int64], rng: np.random.Generator, *, rounds: int, queue_us: float,
          noise_us: float, lost: float = 0.0) -> NDArray[np.float64]:
    """Delays of ports whose packets wait in the queue of their way, half of the time."""
    waits = rng.exponential(queue_us, (rounds, way.max() + 1)) * rng.integers(0, 2, (rounds, 1))
    drift = np.linspace(0, 5000, rounds)[:, None] + rng.exponential(200, (rounds, 1))
    found = 50 + waits[:, way] + drift + rng.exponential(noise_us, (rounds, len(way)))
    found[rng.random(found.shape) < lost] = np.nan
    return found * 1e-6


def right_share(found: NDArray[np.int64], way: NDArray[np.int64]) -> float:
    """Share of the pairs of ports that are rightly put on one path or on two."""
    pairs = np.triu_indices(len(way), 1)
    same = (found[:, None] == found[None, :]) & (found >= 0)
    return float((same == (way[:, None] == way[None, :]))[pairs].mean())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_ports_that_wait_together_share_a_way(seed: int, ways: int) -> None:
    """Queues of the size of other noise, one packet in twenty lost, clocks that drift by 5 ms."""
    rng = np.random.default_rng(seed)
    way = rng.permutation(np.repeat(np.arange(ways), 5))
    found = find_classes(drawn(way, rng, rounds=400, queue_us=100, noise_us=50, lost=0.05))
    assert right_share(found.label, way) >= 0.99
    assert found.sure > 0.2


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_where_nothing_waits_nothing_is_made_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = find_classes(drawn(np.zeros(24, np.int64), rng, rounds=300, queue_us=0, noise_us=50))
    assert (found.label == -1).all()
    assert found.sure == 0


def test_a_port_that_is_not_heard_has_no_class() -> None:
    rng = np.random.default_rng(1)
    way = np.repeat(np.arange(2), 4)
    delays = drawn(way, rng, rounds=300, queue_us=200, noise_us=20)
    delays[:, 2] = np.nan
    found = find_classes(delays)
    assert found.label[2] == -1
    assert sorted(found.label[found.label >= 0].tolist()) == [0] * 3 + [1] * 4


@pytest.mark.parametrize("shape", [(0, 0), (10, 8), (300, 1)])
def test_too_few_samples_give_no_answer(shape: tuple[int, int]) -> None:
    assert find_classes(np.zeros(shape)).sure == 0


# ---- between real kernels

def answering(place: Any, address: str) -> AbstractContextManager[None]:
    """Answer in a namespace."""
    def work(ended: threading.Event) -> None:
        with place.entered():
            answer(address, 61000, lambda: not ended.is_set())
    return beside(work)


def bursts(place: Any, source: str, target: str, ports: list[int], seed: int
           ) -> AbstractContextManager[None]:
    """Another job: by each of some ports, a burst or none every 30 ms."""
    def work(ended: threading.Event) -> None:
        rng = np.random.default_rng(seed)
        with place.entered(), ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                       for _ in ports]
            for sock, port in zip(sockets, ports, strict=True):
                sock.bind((source, port))
            while not ended.wait(0.03):
                for sock, count in zip(sockets, rng.integers(0, 2, len(ports)) * 7, strict=True):
                    for _ in range(count):
                        sock.sendto(bytes(1200), (target, 61001))
    return beside(work)


def ask_until(said: str, words: list[str]) -> str:
    """Ask up to five times: who sends, who answers and the other job share two busy cores here.

    Where these have no time for bursts, nothing is discovered, and the command says so by exit
    code 1.
    """
    for _ in range(5):
        done = CliRunner().invoke(harp, words)
        if done.exit_code == 0 and said in done.stderr:
            break
    assert done.exit_code == 0, done.stderr
    return done.stderr


@pytest.mark.long
@root_only
def test_spines_are_distinguished_by_the_queues_that_another_job_makes(tmp_path: Any) -> None:
    """Four spines, TTL expiry unasked: cables to them are slower than hosts', so queues form."""
    wires = Wires(100e6, 1e-6, SwitchHash("linux", seed=5))
    fabric = replace(leaf_spine(Endpoints.uniform(4, bps=100e6), leaves=2, spines=4, wires=wires),
                     endpoints=tuple(f"h-{host}/eth0" for host in range(4)))
    ports = list(range(61256, 61280))

    def spine_of(host: int, port: int, to: int) -> int:
        ptr, links = fabric.route(fabric.flows(host, 2, port, to))
        return int(links[ptr[0] + 1])

    by_spine = {spine_of(1, port, 61001): port for port in range(62000, 62200)}
    up = [link for link in range(len(fabric.link_src))
          if fabric.node_name(int(fabric.link_src[link])).startswith("leaf")
          and fabric.node_name(int(fabric.link_dst[link])).startswith("spine")]
    share = np.ones(len(fabric.link_src))
    share[up] = 0.05
    with closing(Wiring(fabric, 1.0, 1500)) as wiring:
        wiring.shape(up, share)
        target, file = wiring.address(2), tmp_path / "map.json"
        with (answering(wiring.hosts[2], target),
              bursts(wiring.hosts[1], wiring.address(1), target, list(by_spine.values()), 1),
              wiring.hosts[0].entered()):
            said = ask_until("source ports map to 4 paths", [
                "probe", "--fingerprint", target, "--ports", f"{ports[0]}-{ports[-1]}",
                "--source", wiring.address(0), "--seconds", "8", "-o", str(file)])
    assert "24 of 24 source ports map to 4 paths" in said
    label = {port: number for number, way in enumerate(discovered.from_json(file.read_text()))
             for port in way.ports}
    found = np.array([label.get(port, -1) for port in ports])
    assert right_share(found, np.array([spine_of(0, port, 61000) for port in ports])) >= 0.99


def test_each_path_of_a_connection_gets_a_class_of_its_own_where_no_router_is_known() -> None:
    """Which class takes which spine is a guess, but each of four paths gets another class."""
    fabric = leaf_spine(Endpoints.uniform(4, bps=1e9), leaves=2, spines=4)
    source, target = (str(IPv4Address(int(fabric.endpoint_ip[end]))) for end in (0, 2))
    paths = [discovered.DiscoveredPath(source, f"{target}:61000", (None,), (61256 + n, 61260 + n))
             for n in range(4)]
    choices = discovered.Map(paths, {}).choices(fabric, 0, 2, 61000)
    assert len({choice.links for choice in choices}) == 4
    ends, each = np.zeros(4, np.int64), np.ones(4)
    plan = discovered.plan_discovered(fabric, ends, ends + 2, each * 1e8, ends + 61000,
                                      [choices] * 4, [0] * 4)
    assert sorted(port % 4 for port in plan.source_port.tolist()) == [0, 1, 2, 3]


def test_a_silent_host_is_one_sentence() -> None:
    done = CliRunner().invoke(harp, ["probe", "--fingerprint", "127.0.0.1", "--source",
                                     "127.0.0.1", "--port", "9", "--seconds", "0.5"])
    assert done.exit_code == 1
    assert "is `harp probe --answer` running there" in done.stderr
