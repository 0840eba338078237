"""Keys that only fidelity packet reads: buffers, marks, rings, pauses, policers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sim.answer.scenario import Run, Settings
from sim.run import main
from sim.schema import TopologyError, load
from sim.schema.topology_model import is_of_packet, packet_keys
from tests.support.cluster_files import cluster, topology, write

if TYPE_CHECKING:
    from pathlib import Path

    from sim.network.packet.packet_world import LinkCounts

PACKET_BYTES = 1600
NARROW = {"template": "leaf-spine", "leaves": 2, "spines": 1, "rate": "5Gbps"}


def through_trunk(folder: Path, nic: dict[str, Any] | None = None, **switch: Any) -> LinkCounts:
    """Result of a step over a narrow trunk: two hosts at 10 Gb/s under each of two leaves."""
    built = cluster(folder, hosts=4, rate_bps=10e9, nic=nic, fabric=NARROW | {"switch": switch},
                    workload={"model": "deepfm", "batch": 128, "framework": "free"},
                    scenario={"stack": "harp"})
    run = Run(built, built.topology.scenarios[0], 4, Settings(fidelity="packet"))
    run.go()
    (trunk, *_) = built.fabric.links_between("leaf0", "spine0").tolist()
    counts: LinkCounts = run.network.timed.world.link_counts(trunk)  # type: ignore[attr-defined]
    return counts


def test_port_drops_what_the_buffer_of_the_file_does_not_hold(tmp_path: Path) -> None:
    assert through_trunk(tmp_path).dropped == 0
    short = through_trunk(tmp_path, buffer="30kB", mark="0B")
    assert short.dropped > 0
    assert short.most_bytes <= 15_000 + PACKET_BYTES  # half of it, with an alpha of 1
    greedy = through_trunk(tmp_path, buffer="30kB", alpha=8.0, mark="0B")
    assert 15_000 + PACKET_BYTES < greedy.most_bytes <= 30_000


def test_port_marks_from_the_threshold_of_the_file_on(tmp_path: Path) -> None:
    assert through_trunk(tmp_path, mark="0B").marked == 0
    assert through_trunk(tmp_path, mark="3kB").marked > through_trunk(tmp_path).marked


def test_port_pauses_where_the_file_says_so_and_loses_nothing(tmp_path: Path) -> None:
    paused = through_trunk(tmp_path, buffer="60kB", mark="0B", pfc={})
    assert through_trunk(tmp_path, buffer="60kB", mark="0B").dropped > 0
    assert paused.dropped == 0


def test_buffer_that_does_not_hold_the_headroom_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="a buffer of 20000 B for the headroom of the links to "
                                            "leaf0; allowed: a buffer of at least 2"):
        through_trunk(tmp_path, buffer="20kB", pfc={})


def test_ring_of_the_nic_bounds_what_a_process_has_there(tmp_path: Path) -> None:
    def most_waiting(ring: int) -> int:
        built = cluster(tmp_path, rate_bps=10e9, nic={"ring": ring}, host={"cores": 64},
                        workload={"model": "deepfm", "batch": 128, "framework": "free"},
                        scenario={"stack": "harp"})
        run = Run(built, built.topology.scenarios[0], 2, Settings(fidelity="packet"))
        run.go()
        (link,) = built.fabric.links_between("h-0/eth0", "switch0").tolist()
        world = run.network.timed.world  # type: ignore[attr-defined]
        return int(world.link_counts(link).most_bytes)

    assert most_waiting(16) <= 16 * PACKET_BYTES < most_waiting(1024)


@pytest.mark.parametrize("cap", [{"vnic_rate": "5Gbps"}, {"host_rate": "5Gbps"},
                                 {"flow_rate": "5Gbps"}, {"packet_rate": "400kpps"}])
def test_every_cap_of_a_vpc_polices_where_the_file_says_so(tmp_path: Path,
                                                           cap: dict[str, str]) -> None:
    def policed(**vpc: Any) -> tuple[int, float]:
        built = cluster(tmp_path, rate_bps=10e9, vpc={"vnics": 1} | cap | vpc,
                        workload={"model": "deepfm", "batch": 128, "framework": "free"},
                        scenario={"stack": "harp"})
        run = Run(built, built.topology.scenarios[0], 2, Settings(fidelity="packet"))
        (row,) = run.go()
        counts = run.network.timed.world.counts()  # type: ignore[attr-defined]
        return counts.policed, row.step_s

    # A longer burst is a gift: it lets more through at once than dropping takes away.
    (shaped, shaped_s), (dropped, dropped_s) = policed(), policed(police={"burst": "100us"})
    assert shaped == 0
    assert dropped > 0
    assert dropped_s > shaped_s


@pytest.mark.parametrize(("key", "value", "says"), [
    ("vpc", {"vnics": 1, "police": {}}, "vpc.police: a policer without a cap; allowed: vnic_rate"),
    ("vpc", {"vnics": 1, "host_rate": "1Gbps", "police": {"burst": "1us"}},
     "vpc.police.burst: a policer whose bucket holds less than two packets of 1500 B"),
    ("vpc", {"vnics": 1, "host_rate": "1Gbps", "police": {},
             "burst": {"rate": "2Gbps", "bucket": "1MB"}}, "a policer beside a burst"),
    ("fabric", {"template": "single-switch", "switch": {"bufer": "1MB"}}, "did you mean 'buffer'"),
    ("fabric", {"template": "single-switch", "switch": {"buffer": "2kB"}},
     "fabric.switch.buffer: a buffer of 2000 B for packets of 1500 B; allowed: at least "
     "3000B"),
    ("fabric", {"template": "single-switch", "switch": {"alpha": 0}}, "fabric.switch.alpha"),
    ("fabric", {"template": "single-switch", "switch": {"pfc": {"xof": "1kB"}}},
     "did you mean 'xoff'"),
])
def test_wrong_switch_is_one_sentence(tmp_path: Path, key: str, value: Any,
                                      says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load(write(tmp_path, topology(**{key: value})))
    assert says in str(caught.value)


def test_flow_says_that_only_packet_reads_them(tmp_path: Path) -> None:
    path = write(tmp_path, topology(
        nic={"ring": 512}, vpc={"vnics": 1, "host_rate": "1Gbps", "police": {}},
        fabric={"template": "single-switch", "switch": {"mark": "100kB"}}))
    done = CliRunner().invoke(main, [str(path), "--draws", "0"])
    assert done.exit_code == 0
    text = " ".join(done.output.split())
    assert "Only --fidelity packet reads fabric.switch, hosts.nics.ring, vpc.police." in text
    assert "Here policed caps delay traffic instead of dropping it." in text
    assert "no effect" not in text.replace("has no effect on any row: channels", "")


def test_keys_of_packet_are_found_in_lists_too() -> None:
    assert is_of_packet(("hosts", 0, "nics", 1, "ring"))
    assert not is_of_packet(("hosts", 0, "nics", 1, "rate"))
    assert packet_keys({"hosts": [{"nics": [{"rate": "1Gbps"}, {"ring": 64}]}]}) == [
        "hosts.nics.ring"]
    assert packet_keys({"fabric": {"template": "single-switch"}}) == []


def test_a_plan_of_groups_inside_hosts_needs_no_routes(tmp_path):
    """No flow of a tensor-parallel group leaves its host, and none is to be steered."""
    made = cluster(tmp_path, hosts=1, gpus=2, scenario={
        "stack": "harp", "allreduce": "ring", "tensor": 2, "routing": "plan"},
        workload={"model": {"layers": 1, "width": 64, "heads": 2, "vocabulary": 100},
                  "sequence": 8, "batch": 1, "framework": "free"})
    scenario = made.topology.scenarios[0]
    (row,) = Run(made, scenario, 2, Settings(fidelity="packet")).go()
    assert row.breakdown.latency_s + row.breakdown.exposed_transfer_s > 0
