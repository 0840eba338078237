"""The laboratory: tiny clusters of namespaces, real stacks, the same report; nothing left over."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harp.collectives.protocol import SIMPLE
from harp.collectives.registry import make_plan
from lab.namespace import why_unusable
from sim.answer.answer import answer
from sim.answer.collective_bench import measure
from sim.answer.scenario import Settings, run_scenario
from sim.network.lab import lab_refusals as checks
from sim.network.lab.lab_network import _window_of
from sim.schema import TopologyError
from tests.support import ROOT
from tests.support.cluster_files import cluster, topology, write
from tests.support.levels import long, long_except

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())

LEAF_SPINE = {"template": "leaf-spine", "leaves": 2, "spines": 2, "rate": "1Gbps"}
BOND = {"ports": 2, "bond": "lacp-3+4", "rate": "1Gbps"}
TCP = {"name": "tcp", "stack": "kernel-tcp", "channels": 1}
HARP = TCP | {"name": "harp", "stack": "harp"}


def small(folder, *, gpus=2, scenarios=(TCP,), scale="1/20", **given):
    """Two hosts under different leaves, which send 100 Mb/s each in the laboratory."""
    return cluster(folder, **{"gpus": gpus, "fabric": LEAF_SPINE, "nic": BOND,
                              "scenarios": list(scenarios), "lab": {"scale": scale}} | given)


def time_s(made, collective, algorithm, fidelity, nbytes=1 << 20, scenario=0):
    report = measure(made, collective, [nbytes], scenario=made.topology.scenarios[scenario],
                     settings=Settings(fidelity=fidelity), algorithms=[algorithm])
    return report.rows[0].time_s


@pytest.mark.parametrize("scenario", [0, 1], ids=["tcp", "harp"])
@pytest.mark.parametrize("algorithm", long_except(["ring", "tree", "2d"], "ring"))
def test_an_allreduce_takes_at_least_its_time_on_the_wire(tmp_path, algorithm, scenario):
    made = small(tmp_path, scenarios=(TCP, HARP))
    flow, lab = (time_s(made, "allreduce", algorithm, fidelity, scenario=scenario)
                 for fidelity in ("flow", "lab"))
    assert 0.7 * flow < lab < 1.0


@long
def test_channels_and_sockets_share_the_bytes_of_a_plan(tmp_path):
    made = small(tmp_path, scenarios=[TCP | {"channels": 2, "sockets": 2, "helpers": 1}])
    assert time_s(made, "alltoall", "alltoall", "lab") > 0


@long
@pytest.mark.parametrize("stack", ["kernel-tcp", "harp"])
def test_a_training_step_gives_the_report_that_flow_gives(tmp_path, stack):
    made = small(tmp_path, gpus=1, scale="1/4", scenarios=[TCP | {"stack": stack, "fp16": True}],
                 workload={"model": "resnet50", "batch": 32, "framework": "free"})
    flow, lab = (run_scenario(made, made.topology.scenarios[0], 2, Settings(fidelity=fidelity))[0]
                 for fidelity in ("flow", "lab"))
    assert (lab.name, lab.gpus) == (flow.name, flow.gpus)
    assert lab.breakdown.compute_s == pytest.approx(flow.breakdown.compute_s, rel=0.2)
    assert lab.breakdown.step_s == pytest.approx(lab.step_s)
    assert lab.step_s > 0.8 * flow.step_s
    assert {span.kind for span in lab.spans} >= {"forward", "backward", "transfer"}


@long
def test_a_link_that_is_down_is_routed_around(tmp_path):
    """One of two spines goes at once, before anybody has routed around it, and stays away."""
    fault = {"name": "f", "kind": "link-down", "link": "leaf0-spine0", "at": "0s",
             "detection": "1ms", "recovery": "1ms"}
    made = small(tmp_path, gpus=1, scale="1/4", faults=[fault],
                 scenarios=[TCP | {"faults": ["f"], "fp16": True}],
                 workload={"model": "resnet50", "batch": 32, "framework": "free"})
    result = run_scenario(made, made.topology.scenarios[0], 2, Settings(fidelity="lab"))[0]
    assert any("goes around leaf0-spine0" in note for note in result.notes)


# ---- what is left over


def hosts_of(pid):
    """Processes of the laboratory that a process has."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"sim.network.lab.lab_host" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize("killed_by", long_except(
    [signal.SIGKILL, signal.SIGINT], signal.SIGKILL), ids=["kill -9", "Ctrl-C"])
def test_nothing_is_left_of_a_laboratory_that_is_killed(tmp_path, killed_by):
    path = write(tmp_path, topology(gpus=2, fabric=LEAF_SPINE, nic=BOND, scenarios=[TCP],
                                    lab={"scale": "1/1000"}))
    with subprocess.Popen([sys.executable, "-m", "sim.run", str(path), "--fidelity", "lab",
                           "--collective", "allreduce", "--sizes", "1GiB"], cwd=ROOT,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run, (
            killed_at_last(run)):
        deadline_s = time.monotonic() + 60
        while len(found := hosts_of(run.pid)) < 2:
            assert time.monotonic() < deadline_s
            assert run.poll() is None
        watched = [os.pidfd_open(pid) for pid in found]
        run.send_signal(killed_by)
        for descriptor in watched:
            assert select.select([descriptor], [], [], 30)[0]
            os.close(descriptor)
        run.wait(30)  # and with the last process and descriptor a namespace ends


@contextlib.contextmanager
def killed_at_last(process):
    try:
        yield
    finally:
        process.kill()


def test_a_scenario_that_cannot_be_built_leaves_no_laboratory(tmp_path):
    fault = {"name": "f", "kind": "link-down", "link": "leaf0-nowhere", "at": "0s"}
    made = small(tmp_path, faults=[fault])
    with pytest.raises(TopologyError, match="nowhere"):
        run_scenario(made, made.topology.scenarios[0], 4, Settings(fidelity="lab"))
    assert hosts_of(os.getpid()) == []


# ---- what a laboratory cannot do


@pytest.mark.parametrize(("given", "says"), [
    ({"hosts": 17}, "17 hosts are too many for a laboratory, at 'hosts'"),
    ({"scale": 1}, "Gb/s at a scale of 1"),
    ({"scenarios": [HARP | {"routing": "plan"}]},
     "cannot do routing plan for switches that hash by crc32; allowed: linux"),
    ({"scenarios": [TCP | {"stack": "rdma"}]}, "kernel-tcp, harp, or one with either as its base"),
    ({"scenarios": [TCP | {"bond": "dynamic"}]}, "bonds of none, lacp-2+3 or lacp-3+4 under TCP"),
    ({"vpc": {"vnics": 1, "overlay": {}}}, "cannot do an overlay; allowed: a vpc without overlay"),
], ids=["too large", "too fast", "planned for a chip", "rdma", "dynamic bond", "overlay"])
def test_a_file_that_does_not_fit_a_laboratory_is_refused_at_once(tmp_path, given, says):
    rate = {"nic": BOND | {"rate": "100Gbps"}} if given == {"scale": 1} else {}
    made = small(tmp_path, **given | rate)
    with pytest.raises(TopologyError, match=re.escape(says.split(", at")[0])):
        run_scenario(made, made.topology.scenarios[0], made.gpus, Settings(fidelity="lab"))


def test_congestion_control_that_the_kernel_lacks_is_named(tmp_path, monkeypatch):
    (tmp_path / "controls").write_text("reno cubic\n")
    monkeypatch.setattr(checks, "CONGESTION_CONTROLS", tmp_path / "controls")
    made = small(tmp_path, scenarios=[TCP | {"congestion": "bbr"}])
    with pytest.raises(TopologyError, match="congestion bbr, which this kernel lacks"):
        run_scenario(made, made.topology.scenarios[0], made.gpus, Settings(fidelity="lab"))


def test_a_file_that_would_take_hours_is_refused_before_anything_runs(tmp_path):
    made = small(tmp_path, scale="1/100000")
    with pytest.raises(TopologyError, match=r"would take [0-9,]+ minutes for these 1 rows"):
        answer(made, made.topology.scenarios, fidelity="lab")


def test_rows_that_a_laboratory_cannot_carry_are_left_out_and_named(tmp_path):
    made = small(tmp_path, gpus=1, scale="1/4", scenarios=[
        TCP | {"fp16": True}, TCP | {"name": "split", "bond": "dynamic"}],
        workload={"model": {"layers": 2, "width": 64, "heads": 2, "vocabulary": 512},
                  "sequence": 32, "batch": 1, "framework": "free"})
    report = answer(made, made.topology.scenarios, fidelity="lab")
    assert [row.name for row in report.scenarios] == ["tcp"]
    assert any("Left out: split, 2 GPUs." in note for note in report.notes)


@pytest.mark.parametrize(("ranks", "nbytes", "slot"), [(4, 1 << 20, 128 << 10), (2, 16, 8)])
def test_pieces_of_a_tree_are_as_small_as_those_of_nccl(ranks, nbytes, slot):
    plan = make_plan("tree", ranks=ranks, nbytes=nbytes, group=1)
    assert _window_of(plan, SIMPLE.window, 1).slot_bytes == slot
    ring = make_plan("ring", ranks=ranks, nbytes=nbytes, group=1)
    assert _window_of(ring, SIMPLE.window, 1) == SIMPLE.window


def test_top_k_is_refused_before_anything_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr("sim.network.lab.lab_network.Wiring", None)
    made = small(tmp_path, scenarios=[TCP | {"allreduce": "light", "light": {
        "LIGHT_TOPK_ALLREDUCE": 1, "LIGHT_TOPK_THRESHOLD": 1}}])
    with pytest.raises(TopologyError, match="cannot do top-k, for which it has no GPUs"):
        run_scenario(made, made.topology.scenarios[0], 4, Settings(fidelity="lab"))


@pytest.mark.parametrize(("text", "scale"), [("1/100", 0.01), ("0.5", 0.5), (1, 1.0)])
def test_a_scale_is_a_share(tmp_path, text, scale):
    assert small(tmp_path, scale=text).topology.lab.scale == scale


@pytest.mark.parametrize("text", ["100", "1/0", "slow", 0, True])
def test_a_scale_that_is_no_share_is_refused(tmp_path, text):
    with pytest.raises(TopologyError, match="a share such as 1/100"):
        small(tmp_path, scale=text)
