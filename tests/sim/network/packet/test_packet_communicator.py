"""``--fidelity packet``: the same table as flow, or one sentence why not."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from harp.collectives.registry import make_plan
from sim.answer.scenario import Settings
from sim.cluster.cluster import Cluster
from sim.network.packet.packet_communicator import in_batches
from sim.run import main
from sim.schema import load
from tests.support import ROOT
from tests.support.sim_runs import run_all

FOLDER = ROOT / "topologies"
BONDED = FOLDER / "bonded-ecmp-2x4.yaml"


def images_per_s(cluster: Cluster, fidelity: str) -> dict[str, float]:
    rows = run_all(cluster, cluster.topology.scenarios, Settings(fidelity=fidelity))
    return {row.name: row.images_per_s for row in rows}


def test_bonded_cluster_has_the_same_answers_as_flow() -> None:
    cluster = Cluster(load(BONDED))
    flow, packet = images_per_s(cluster, "flow"), images_per_s(cluster, "packet")
    assert list(flow) == list(packet)
    errors = {name: packet[name] / flow[name] - 1 for name in flow}
    two_paths = errors.pop("1 channel, two paths")
    assert -0.12 < two_paths < 0.02  # ACKs wait behind data: the next test
    assert all(-0.05 < error < 0.02 for error in errors.values()), errors


def test_two_paths_are_as_good_as_flow_says_where_acks_wait_for_no_data() -> None:
    """Where two ports of a host send to one of the next, the queue is in the switch.

    ACKs of what the next host sends wait there, and its sender takes that queue for its own path's.
    """
    cluster = Cluster(load(BONDED, ["fabric.switch.acks_first=true"]))
    flow, packet = images_per_s(cluster, "flow"), images_per_s(cluster, "packet")
    errors = {name: packet[name] / flow[name] - 1 for name in flow}
    assert all(-0.025 < error < 0.01 for error in errors.values()), errors


def test_same_file_gives_the_same_answer_again() -> None:
    cluster = Cluster(load(BONDED))
    one = [cluster.topology.scenarios[0]]
    first, second = (run_all(cluster, one, Settings(fidelity="packet")) for _ in range(2))
    assert first[0].step_s == second[0].step_s


@pytest.mark.parametrize("congestion", ["cubic", "bbr"])
def test_kernel_tcp_has_the_same_answer_as_flow(congestion: str) -> None:
    """Its network thread is the limit, whatever controls congestion."""
    cluster = Cluster(load(BONDED, ["scenarios[0].stack=kernel-tcp",
                                    f"scenarios[0].congestion={congestion}"]))
    one = cluster.topology.scenarios[:1]
    flow, packet = (run_all(cluster, one, Settings(fidelity=fidelity))[0].images_per_s
                    for fidelity in ("flow", "packet"))
    assert packet == pytest.approx(flow, rel=0.05)


def test_flow_says_that_only_packet_reads_congestion() -> None:
    changes = ["--set", "scenarios[0].stack=kernel-tcp", "--set", "scenarios[0].congestion=bbr"]
    done = CliRunner().invoke(main, [str(BONDED), *changes, "--scenario", "1 channel, one path",
                                     "--draws", "0"])
    assert done.exit_code == 0
    text = " ".join(done.output.split())
    assert "Only --fidelity packet and lab read scenarios.congestion" in text


def test_congestion_of_another_stack_is_refused_in_a_sentence() -> None:
    done = CliRunner().invoke(main, [str(BONDED), "--set", "scenarios[0].congestion=bbr"])
    assert done.exit_code == 2
    assert "scenarios[0].congestion: has no effect on stack 'harp'" in " ".join(done.output.split())


@pytest.mark.parametrize(("arguments", "says"), [
    ([str(FOLDER / "bonded-2x100g.yaml")], "no model of 'rdma'; allowed: harp, kernel-tcp"),
    ([str(BONDED), "--scenario", "1 channel, one path", "--set", "scenarios[0].stack=kernel-tcp",
      "--set", "scenarios[0].sockets=40", "--set", "scenarios[0].bond=dynamic"],
     "allowed: up to 32"),
])
def test_keys_that_packets_lack_are_refused_in_a_sentence(arguments: list[str],
                                                          says: str) -> None:
    done = CliRunner().invoke(main, [*arguments, "--fidelity", "packet"])
    assert done.exit_code == 2
    assert says in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize("ranks", [2, 9, 16, 40])
def test_all_to_all_has_eight_messages_of_a_rank_under_way(ranks: int) -> None:
    """As NCCL's kernel takes them up; every message is in one stage."""
    (phase,) = make_plan("alltoall", ranks=ranks, nbytes=ranks << 10).phases()
    parts = in_batches(phase)
    assert len(parts) == -(-(ranks - 1) // 8)
    for part in parts:
        assert np.bincount(part.src).max() <= 8
        assert np.bincount(part.dst).max() <= 8
    pairs = [pair for part in parts for pair in zip(part.src, part.dst, strict=True)]
    assert sorted(pairs) == sorted(zip(phase.src, phase.dst, strict=True))
