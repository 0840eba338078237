"""The shipped clusters: each answer against a bound that was worked out by hand.

A bound is bytes over the bottleneck's rate, or an order that physics demands (a fault never helps,
a second job never helps, a plan is never worse than hashing). Bytes that leave each host for S
bytes of gradients on N GPUs of M hosts: ring 2(N-1)/N·S, 2D 2(M-1)/M·S, over all of its NICs.
"""

from functools import cache

import pytest

from harp.lightcc.outer_policy import faster_exchange
from sim.cluster.cluster import Cluster
from sim.report.answer_table import outside
from sim.schema import load
from sim.schema.parameters import load_stack
from sim.workloads.models import get_model
from tests.support import ROOT
from tests.support.levels import long, long_except
from tests.support.sim_runs import run_all

FOLDER = ROOT / "topologies"
HUGE = {"clos3-1024", "clos3-16384"}
"""Measured by python -m bench sim; too large to run here."""
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem not in HUGE)

RDMA = (1500 - 44 + 82) / (1500 - 44)
"""Bytes on the wire for each byte of payload: MTU 1500, RoCEv2's headers of 44 B inside it."""


@cache
def results(name):
    cluster = Cluster(load(FOLDER / f"{name}.yaml"))
    return tuple(run_all(cluster, cluster.topology.scenarios))


def step_s(name, scenario, *, job="", gpus=None):
    found = [row.step_s for row in results(name)
             if (row.name, row.job) == (scenario, job) and gpus in (None, row.gpus)]
    assert len(found) == 1, (scenario, found)
    return found[0]


def gradient_bytes(model, element_bytes=4):
    return element_bytes * sum(tensor.elements for tensor in get_model(model).tensors)


LONG = ("three-continents", "taco-models-a100-50g", "cloud-vpc-25g-burst", "offload-t5-v100-disk",
        "offload-a10-25g", "llama3-8b-a100-100g", "moe-a100-100g")
"""Clusters whose answers take seconds."""
every_file = pytest.mark.parametrize(
    "name", long_except(NAMES, *(name for name in NAMES if name not in LONG)))


@every_file
def test_an_answer_is_sane(name):
    for row in results(name):
        parts = row.breakdown
        assert 0 < row.efficiency <= 1.0, row.name
        assert min(parts.compute_s, parts.exposed_transfer_s, parts.selection_s, parts.latency_s,
                   parts.message_s) >= 0, row.name
        assert row.images_per_s * row.step_s == pytest.approx(round(row.images_per_s * row.step_s))


@every_file
def test_published_figures_hold(name):
    assert not [row.name for row in results(name) if outside(row)]


def test_the_catalogue_names_every_file():
    catalogue = (ROOT / "docs" / "start" / "topologies.md").read_text()
    for path in FOLDER.glob("*.yaml"):
        assert f"(../../topologies/{path.name})" in catalogue, path.name


def test_shards_of_llama_send_their_bytes():
    """One NIC a host: rings leave it with (n - 1)/n of the parameters' bytes each time."""
    name, micro = "llama3-8b-a100-100g", 16
    nbytes = gradient_bytes("llama3-8b", 2) * 31 / 32 * RDMA / 12.5e9
    least = micro * 3 * nbytes
    assert least <= step_s(name, "fsdp+RDMA") <= 1.1 * least
    compute_s = next(row.breakdown.compute_s for row in results(name) if row.name == "zero1+TCP")
    assert step_s(name, "zero1+TCP") >= compute_s + nbytes / RDMA  # gathered behind the update
    assert step_s(name, "zero1+TCP") < step_s(name, "hsdp+TCP") < step_s(name, "fsdp+TCP")
    assert step_s(name, "fsdp+HARP") < step_s(name, "fsdp+TCP")


def test_burst_is_spent_once():
    """Forty steps send 40 x 2·3/4·S; all but the bucket's 2 GB goes at the guaranteed 10 Gb/s."""
    name, steps = "cloud-vpc-25g-burst", 40
    wire = (1428 + 110) / 1428  # HARP's headers are 110 B, 72 of them inside the MTU of 1500
    sent = 2 * 3 / 4 * gradient_bytes("bert-base") * wire
    least = (steps * sent - 2e9) / 1.25e9 / steps
    assert least <= step_s(name, "HARP 2D, 40 steps") <= 1.1 * least
    # The first step runs on the bucket: faster than guaranteed, no faster than the burst.
    assert sent / 3.125e9 <= step_s(name, "HARP 2D, first step") < sent / 1.25e9


@pytest.mark.parametrize(("job", "model"), long_except(
    [("transformer-xl", "transformer-xl"), ("bert-base", "bert-base")], ("bert-base", "bert-base")))
def test_50g_is_bound_by_the_bytes_out_of_a_host(job, model):
    """At 50 Gb/s a host sends S bytes, by 2D (M = 2) and by the tree that NCCL takes alike."""
    name, second = "taco-models-a100-50g", gradient_bytes(model) / 6.25e9
    assert step_s(name, "2D+HARP x8", job=job) >= second
    assert step_s(name, "Horovod+RDMA", job=job) >= second
    assert step_s(name, "Horovod+TCP", job=job) > 4 * step_s(name, "2D+HARP x8", job=job)
    for stack in ("HARP", "TCP x8", "HARP x8"):
        assert step_s(name, f"Horovod+{stack}", job=job) == pytest.approx(
            step_s(name, f"2D+{stack}", job=job), rel=0.07)  # it has more messages


def test_50g_harp_is_near_rdma_only_if_its_ceiling_is_a_process():
    """Tencent writes that HARP on 50 Gb/s comes close to RDMA, for ResNet-50 and Transformer-XL."""
    for job, near, far in (("resnet50", 1.15, 1.4), ("transformer-xl", 1.5, 4)):
        host, process, rdma = (
            step_s("taco-models-a100-50g", scenario, job=job)
            for scenario in ("Horovod+HARP", "Horovod+HARP x8", "Horovod+RDMA"))
        assert rdma <= process <= near * rdma
        assert host > far * rdma


def test_flow_caps_need_sockets_up_to_what_a_thread_moves():
    """One flow of 5 Gb/s carries the whole ring; many flows meet the host's memory at 51 Gb/s."""
    name = "cloud-vpc-100g-flow-caps"
    ring = 2 * 31 / 32 * gradient_bytes("vgg16")
    one = step_s(name, "1 channel x 1 socket")
    assert one >= ring / 0.625e9
    two = step_s(name, "1 channel x 2 sockets")
    assert ring / 1.25e9 <= two < 0.6 * one
    assert two == pytest.approx(step_s(name, "2 channels x 1 socket"), rel=0.01)
    four = step_s(name, "1 channel x 4 sockets")
    assert ring / 2.5e9 <= four < 0.65 * two
    most = step_s(name, "2 channels x 2 helpers x 8")
    memory = load_stack("kernel-tcp").memory_per_byte.value
    assert most >= ring * 2 * memory / 128e9
    assert most == pytest.approx(step_s(name, "4 channels x 2 helpers x 8"), rel=0.05)
    assert step_s(name, "2D x 1 socket") < most


def test_a_bond_gives_one_port_or_both():
    """A ring over 32 GPUs sends 2·31/32·S: at 12.5 GB/s by one port, at 25 by both."""
    name = "bonded-2x100g"
    ring = 2 * 31 / 32 * gradient_bytes("bert-large") * RDMA
    one = step_s(name, "one port")
    assert one >= ring / 12.5e9
    assert step_s(name, "layer 2+3, 2 QPs a channel") == pytest.approx(one, rel=1e-6)
    both = step_s(name, "dynamic")
    assert ring / 25e9 <= both < one
    transfer = {row.name: row.breakdown.exposed_transfer_s for row in results(name)}
    # Beside the backward pass that hides some of both, a second port halves the transfer.
    assert transfer["one port"] - transfer["dynamic"] >= 0.99 * ring / 25e9 * 0.9
    for qps in ("1 QP", "2 QPs", "4 QPs", "16 QPs"):
        assert both * 0.999 <= step_s(name, f"layer 3+4, {qps} a channel") <= one * 1.001
    assert step_s(name, "layer 3+4, 1 QP a channel, planned") == pytest.approx(both, rel=0.01)


def test_rails_and_plans_never_lose():
    """A GPU sends no more than 50 GB/s by its own NIC; rails need no spine inside a group."""
    name = "rail-h100-8x400g"
    nbytes = gradient_bytes("bert-large", 2)
    one = "ring of 1 channel"
    assert step_s(name, one) >= 2 * 127 / 128 * nbytes * RDMA / 50e9
    assert step_s(name, "2D") >= 2 * 15 / 16 * nbytes * RDMA / 400e9
    assert step_s(name, "ring") < step_s(name, one) < step_s(name, f"{one} off the rails")
    for scenario in ("ring", "2D", "ring off the rails"):
        assert step_s(name, f"{scenario}, planned") <= step_s(name, scenario) * (1 + 1e-9)
    # With a NIC a GPU, planned paths make rings across rails as good as rings on them, but for the
    # latency of the spines.
    assert step_s(name, "ring off the rails, planned") == pytest.approx(
        step_s(name, "ring"), rel=0.02)
    assert step_s(name, "NCCL's choice") <= step_s(name, "ring")


@pytest.mark.parametrize("kind", ["", "2D "])
def test_oversubscription_is_paid_once_by_plan_and_spray(kind):
    """Round robin, all 8 hosts of a leaf send by 8 x 12.5 GB/s; with affinity, one host does."""
    name = "leaf-spine-2to1"
    plan, spray, ecmp = (step_s(name, f"{kind}as scheduled, {routing}", job="bert")
                         for routing in ("plan", "spray", "ECMP"))
    sent = 2 * 31 / 32 * gradient_bytes("bert-large", 2) * RDMA
    assert plan >= 8 * sent / 100e9
    # Short buckets go by trees, whose paths are planned apart from the rings'.
    assert plan == pytest.approx(spray, rel=0.02)
    assert plan < ecmp
    near = step_s(name, f"{kind}affinity, ECMP", job="bert")
    assert sent / 25e9 <= near < plan
    assert step_s(name, f"{kind}affinity, plan", job="bert") <= near * (1 + 1e-9)


def test_faults_cost_what_they_take():
    """A port for good doubles the transfers; one second of detection costs the rest of a second."""
    name, steps = "dual-tor-failover", 10
    whole = step_s(name, "no fault")
    ring = 2 * 63 / 64 * gradient_bytes("bert-large") * RDMA
    assert whole >= ring / 25e9
    short, good, late = (step_s(name, scenario) for scenario in (
        "port down for 1 s", "port down for good", "port down, seen after 1 s"))
    assert whole < short < good < late
    assert steps * (late - good) == pytest.approx(1.0 - 0.05, abs=0.15)
    assert good >= 0.9 * ring / 12.5e9
    # The slowest edge sets the pace: one host's port costs the ring what the whole ToR does.
    assert step_s(name, "ToR down") == pytest.approx(good, rel=0.02)
    assert whole < step_s(name, "flapping port") < good


def test_a_second_job_never_helps():
    """Two jobs on one oversubscribed fabric share its uplinks; packed apart, they never meet."""
    name = "two-jobs"
    for alone, both in (("spread, in any order", "spread, in any order, both"),
                        ("affinity", "affinity, both")):
        first = step_s(name, alone, job="mine")
        for job in ("mine", "theirs"):
            assert first <= step_s(name, both, job=job) <= 2.1 * first
    assert step_s(name, "affinity, both, sprayed", job="mine") <= step_s(
        name, "affinity, both", job="mine")
    for job in ("mine-packed", "theirs-packed"):  # under one leaf latencies are a little less
        assert step_s(name, "packed, both", job=job) == pytest.approx(
            step_s(name, "affinity", job="mine"), rel=0.002)


def test_experts_exchange_four_times_a_layer():
    """Each of 48 all-to-alls moves (M-1)/M of 8 GPUs' activations out of a host at 12.5 GB/s."""
    name = "moe-a100-100g"
    layers = [layer for layer in get_model("moe").layers if layer.alltoall_elements]
    assert len(layers) == 12
    nbytes = 4 * len(layers) * 8 * 4 * layers[0].alltoall_elements * 2
    compute = step_s(name, "direct+RDMA", gpus=8)
    exposed = {}
    for gpus, hosts in ((16, 2), (64, 8)):
        exposed[gpus] = step_s(name, "direct+RDMA", gpus=gpus) - compute
        least = (hosts - 1) / hosts * nbytes * RDMA / 12.5e9
        # On top come gradients that share the NIC, and a third of them after the last layer.
        assert least <= exposed[gpus] <= 1.5 * least
        assert step_s(name, "hierarchical+RDMA", gpus=gpus) >= compute + least
    assert exposed[64] / exposed[16] == pytest.approx((7 / 8) / (1 / 2), rel=0.1)


def test_tables_exchange_ids_rows_and_gradients():
    """Of 2,048 x 26 ids a GPU, those of other hosts: 8 bytes, and 128 floats there and back."""
    name = "dlrm-v100-25g"
    for gpus, hosts in ((16, 2), (32, 4)):
        whole = 8 * 2048 * 26 * (8 + 2 * 4 * 128)
        least = (hosts - 1) / hosts * whole * RDMA / 3.125e9
        found = step_s(name, "RDMA", gpus=gpus)
        # What comes on top: 6.4 ms of computing, and 9.6 MB of gradients, partly beside the rest.
        assert least + 6.4e-3 <= found <= least + 6.4e-3 + 2 * 9.6e6 / 3.125e9


def test_a_slow_side_is_worse_than_a_dead_one():
    """Routing leaves a dead side; on a slow one it stays, at a tenth of 2 x 12.5 GB/s a cable."""
    name = "explicit-triangle"
    healthy, dead, slow = (step_s(name, scenario)
                           for scenario in ("healthy", "side down", "side at a tenth"))
    assert healthy <= dead < slow
    assert healthy <= step_s(name, "side flaps") <= dead
    assert slow <= 10 * healthy


def test_on_1g_an_average_in_each_step_takes_most_of_it_and_rare_ones_a_share():
    parameters, line = get_model("gpt2", 1024).parameters, 125e6
    compute_s = step_s("slow-8x1g", "one alone")
    average_s = 2 * 7 / 8 * 4 * parameters / line
    assert step_s("slow-8x1g", "DDP") == pytest.approx(average_s / 2, rel=0.2)  # bf16
    for scenario, every, share in (("DiLoCo", 30, 1), ("DiLoCo int8", 30, 1 / 4),
                                   ("DiLoCo 500", 500, 1)):
        wanted = compute_s + share * average_s / every
        assert step_s("slow-8x1g", scenario) == pytest.approx(wanted, rel=0.15), scenario
    # A message of 28 bits for each of 64 among 4,096 values, from each of seven others.
    sparse_s = 7 * parameters * 116 / 4096 / line
    assert step_s("slow-8x1g", "SparseLoCo") == pytest.approx(compute_s + sparse_s / 30, rel=0.15)
    # An eighth of 4 bytes a value is sent while seven steps compute.
    assert average_s / 8 / 4 < 7 * compute_s
    assert step_s("slow-8x1g", "streaming int4") < 1.05 * compute_s


@long
def test_three_continents_meet_over_the_slowest_link():
    """A ring passes each link once; direct int8 goes from each host to each other, twice."""
    parameters, line, local_s = 10.2e9, 500e6 / 8, 2280 / 100
    ring_s = 2 * 13 / 14 * 4 * parameters / line
    pairs = 7 * 4  # between America and Europe
    direct_s = 2 * pairs * parameters / 14 / line
    assert 60 < ring_s / 4 < 7 * 60  # INTELLECT-1: 1 to 7 minutes
    assert step_s("three-continents", "INTELLECT-1") == pytest.approx(
        local_s + ring_s / 4 / 100, rel=0.05)
    assert step_s("three-continents", "the same, direct") == pytest.approx(
        local_s + direct_s / 100, rel=0.05)
    assert faster_exchange(parameters, [7, 4, 3], 8 * line, 0.08) == "ring"
    assert step_s("three-continents", "fp32") == pytest.approx(local_s + ring_s / 100, rel=0.05)
    # A fifth of it is sent while five steps compute.
    exposed_s = direct_s / 5 - 5 * local_s
    assert exposed_s > 0
    assert step_s("three-continents", "streaming") == pytest.approx(
        local_s + 5 * exposed_s / 100, rel=0.05)
