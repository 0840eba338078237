"""``--fidelity steady``: collectives that repeat themselves take the time of those before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import simpy

from sim.answer.scenario import Settings
from sim.cluster.cluster import Cluster
from sim.network.packet.repeats import EVERY, FIRST, WARM_S, Repeats, Took
from sim.schema import load
from tests.support.levels import long
from tests.support.sim_runs import run_all

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from sim.network.packet.repeats import Uses
    from sim.records.results import ScenarioResult

STEPS = """
name: steps
hosts:
  - {name: h, count: 4, gpus: {count: 2, model: A100}, nvlink: {rate: 200GB/s, latency: 3us},
     nics: [{name: eth, rate: 25Gbps, count: 2}]}
fabric: {template: leaf-spine, leaves: 2, spines: 2, rate: 25Gbps, latency: 1us, mtu: 8500B}
workload: {model: {layers: 8, width: 1024, heads: 16, vocabulary: 4096}, sequence: 512, batch: 1,
           precision: bf16, framework: ddp}
scenarios:
  - {name: TP, stack: harp, parallel: {tensor: 2}, allreduce: ring, channels: 2,
     fusion: {threshold: 4MiB}, steps: 12}
"""


class Network:
    """Collectives that take given times, where `Repeats` does not know them."""

    def __init__(self) -> None:
        self.env = simpy.Environment()
        self.stood_s = 0.0
        self.repeats = Repeats(self.env, self._stand, lambda: 0)
        self.simulated: list[float] = []

    def _stand(self, seconds: float) -> None:
        self.stood_s += seconds

    def run(self, key: str, seconds: float, uses: Uses) -> Generator[simpy.Event, None, None]:
        batch, number = yield from self.repeats.join(key)
        self.repeats.use(batch, uses)
        if batch.is_known:
            seconds = batch.kind.mean(number).seconds
        else:
            self.simulated.append(seconds)
        yield self.env.timeout(seconds)
        self.repeats.end(batch, number, Took(seconds, None))

    def one_by_one(self, times_s: Iterable[float]) -> Generator[simpy.Event, None, None]:
        for seconds in times_s:
            yield self.env.process(self.run("ring", seconds, frozenset({1})))


def test_the_first_of_a_kind_and_every_eighth_are_simulated_and_the_clock_stands_meanwhile() -> (
        None):
    network = Network()
    network.env.run(network.env.process(network.one_by_one([1.0] * 20)))
    simulated = {*range(1, FIRST + 1), EVERY, 2 * EVERY}
    assert len(network.simulated) == len(simulated)
    assert network.env.now == pytest.approx(20)
    assert network.stood_s == pytest.approx(20 - len(simulated))


def test_nothing_is_known_before_sessions_have_learned_their_paths() -> None:
    network = Network()
    network.env.run(network.env.process(network.one_by_one([WARM_S / 20] * 20)))
    assert len(network.simulated) == 20


def test_times_that_scatter_are_all_simulated() -> None:
    network = Network()
    times_s = [1.0 + 0.1 * (number % 2) for number in range(20)]
    network.env.run(network.env.process(network.one_by_one(times_s)))
    assert network.simulated == times_s
    assert network.stood_s == 0


def test_a_kind_that_changes_is_simulated_from_the_next_check_on() -> None:
    network = Network()
    network.env.run(network.env.process(network.one_by_one([1.0] * 7 + [2.0] * 13)))
    assert network.simulated == [1.0] * FIRST + [2.0] * (EVERY + 1)  # the 8th to 15th, and the 16th


@pytest.mark.parametrize(("uses", "known"), [(frozenset({1}), False), (None, False),
                                             (frozenset({2}), True)])
def test_collectives_that_share_a_link_are_simulated_and_others_are_not(
        uses: Uses, *, known: bool) -> None:
    network = Network()

    def late() -> Generator[simpy.Event, None, None]:
        yield network.env.timeout(0.5)
        for _ in range(20):
            yield network.env.process(network.run("other", 1.0, uses))

    network.env.process(late())
    network.env.run(network.env.process(network.one_by_one([1.0] * 20)))
    assert (len(network.simulated) < 20) == known


def test_collectives_that_begin_together_are_one_batch_and_keep_their_own_times() -> None:
    network = Network()

    def both() -> Generator[simpy.Event, None, None]:
        for _ in range(12):
            yield network.env.all_of([
                network.env.process(network.run(key, seconds, frozenset({1})))
                for key, seconds in (("short", 1.0), ("long", 3.0))])

    network.env.run(network.env.process(both()))
    assert len(network.simulated) == 2 * (FIRST + 1)  # and the eighth
    assert network.env.now == pytest.approx(36)


def answer(path: Path, fidelity: str, *changes: str) -> ScenarioResult:
    cluster = Cluster(load(path, list(changes)))
    return run_all(cluster, cluster.topology.scenarios, Settings(fidelity=fidelity))[0]


@long
@pytest.mark.parametrize("changes", [(), ("scenarios[0].stack=kernel-tcp",)], ids=str)
def test_a_step_takes_what_it_does_with_all_packets_within_a_hundredth(
        tmp_path: Path, changes: tuple[str, ...]) -> None:
    """Over paths that collide by ECMP."""
    path = tmp_path / "steps.yaml"
    path.write_text(STEPS)
    packet, steady = (answer(path, fidelity, *changes) for fidelity in ("packet", "steady"))
    assert steady.step_s == pytest.approx(packet.step_s, rel=0.01)
    (said,) = (note for note in steady.notes if "collectives take the mean time" in note)
    assert not said.startswith("0 of ")


@long
def test_nothing_is_skipped_once_a_packet_was_lost(tmp_path: Path) -> None:
    path = tmp_path / "steps.yaml"
    path.write_text(STEPS)
    packet, steady = (answer(path, fidelity, "fabric.switch.buffer=100kB")
                      for fidelity in ("packet", "steady"))
    assert steady.step_s == packet.step_s
    assert any(note.startswith("0 of ") for note in steady.notes)


def test_a_step_shorter_than_sessions_learn_is_that_of_packet_to_the_nanosecond(
        tmp_path: Path) -> None:
    path = tmp_path / "steps.yaml"
    path.write_text(STEPS)
    packet, steady = (answer(path, fidelity, "scenarios[0].steps=1")
                      for fidelity in ("packet", "steady"))
    assert steady.step_s == packet.step_s


def test_nothing_is_skipped_where_a_file_has_faults(tmp_path: Path) -> None:
    path = tmp_path / "steps.yaml"
    path.write_text(STEPS + """
faults:
  - {name: slow, kind: link-degrade, link: leaf0-spine0, at: 1s, factor: 50%}
""")
    packet, steady = (answer(path, fidelity, "scenarios[0].steps=1")
                      for fidelity in ("packet", "steady"))
    assert steady.step_s == packet.step_s
    assert not [note for note in steady.notes if "mean time" in note]
