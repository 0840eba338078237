"""What NCCL holds collectives to beside links, by figures worked out from its table."""

from __future__ import annotations

import numpy as np
import pytest

from harp.collectives.protocol import LL, LL128, SIMPLE
from harp.collectives.registry import make_plan
from sim.answer.collective_bench import measure
from sim.network.interface import Site
from sim.network.nccl_limits import Limits
from sim.network.nvls import nvls_plan
from sim.network.transport import Style, Transport
from sim.schema.parameters import load_stack
from tests.support.cluster_files import ALPHA_S, IDEAL, cluster

GIB = 1 << 30
KERNELS = IDEAL | {"launch": "1ns"}


def hosts_of(folder, model="A100", hosts=2, gpus=8, processors=None, **given):
    nvlink = {"rate": "240GB/s", "latency": "0s"}
    maker = {} if processors is None else {"processors": processors}
    return cluster(folder, hosts=hosts, gpus=gpus, nic={"count": 8, "rate": "200Gbps"}, host={
        "gpus": {"count": gpus, "model": model, "effective": "1TFLOPS"}, "nvlink": nvlink} | maker,
        **given)


def limits(folder, **given):
    built = hosts_of(folder, **given)
    return Limits.of(built, np.arange(built.gpus))


def ring(name="ring", nbytes=GIB, ranks=16):
    return make_plan(name, ranks=ranks, nbytes=nbytes)


@pytest.mark.parametrize(("name", "model", "hosts", "protocol", "bus"), [
    ("ring", "A100", 2, LL, 22.5), ("ring", "V100", 2, LL, 39.0), ("ring", "H100", 4, LL, 20.4),
    ("ring", "A100", 1, LL, 87.7), ("ring", "A100", 2, LL128, 8 * 20.0),
    ("ring", "H100", 2, LL128, 8 * 36.7), ("allgather", "A100", 2, LL128, 8 * 20.0),
    ("tree", "A100", 2, SIMPLE, 8 * 23.6), ("tree", "A100", 2, LL128, 8 * 20.0),
    ("tree", "A100", 2, LL, 22.5), ("tree", "H100", 2, SIMPLE, 240.0)])
def test_channels_of_a_protocol_reach_the_rate_of_nccls_table(tmp_path, name, model, hosts,
                                                              protocol, bus):
    """GB/s on the bus; LL between hosts by their processors, AMD's beside A100 and else Intel's."""
    ranks = 8 * hosts
    plan = ring(name, protocol.wire_bytes(64 * GIB, 4), ranks)
    steps = (ranks - 1) * (1 if name == "allgather" else 2)
    found = limits(tmp_path, model=model, hosts=hosts).bytes_per_s(plan, protocol)
    assert found / protocol.wire == pytest.approx(bus * 1e9 * ranks / steps)


@pytest.mark.parametrize(("name", "protocol", "model", "inside"), [
    ("ring", SIMPLE, "A100", 6e-6), ("ring", SIMPLE, "V100", 3e-6), ("ring", LL, "A100", 2e-6),
    ("allgather", SIMPLE, "H100", 3e-6)])
def test_steps_of_a_ring_between_hosts_add_up(tmp_path, name, protocol, model, inside):
    """Proxy threads take 1 us (Intel) or 2 (AMD) for each, by Simple three times that."""
    inner = np.arange(16) % 8 < 7
    found = limits(tmp_path, model=model).latency_s(
        ring(name), protocol, steps=30, alpha_s=np.where(inner, 1e-7, 20e-6), inner=inner)
    assert found == pytest.approx(30 * (14 * inside + 2 * 20e-6) / 16)


@pytest.mark.parametrize(("processors", "model", "bus", "inside"), [
    ("intel", "A100", 39.0, 3e-6), ("amd", "H100", 22.5, 6e-6), ("other", "A100", 39.0, 3e-6)])
def test_a_file_may_name_the_processors(tmp_path, processors, model, bus, inside):
    """AMD's instances of H100 and Intel's of A100 exist: AWS's p5 and p4d."""
    found = limits(tmp_path, model=model, processors=processors)
    plan = ring(nbytes=LL.wire_bytes(64 * GIB, 4))
    assert found.bytes_per_s(plan, LL) / LL.wire == pytest.approx(bus * 1e9 * 16 / 30)
    inner = np.arange(16) % 8 < 7
    step_s = found.latency_s(ring(), SIMPLE, steps=1, alpha_s=np.full(16, 1e-7), inner=inner)
    assert step_s == pytest.approx((14 * inside + 2 * 1e-7) / 16)


def test_a_ring_of_long_messages_takes_its_bytes_and_its_steps(tmp_path):
    built = hosts_of(tmp_path, stacks={"ideal": KERNELS}, scenario={"channels": 16})
    time_s = measure(built, "allreduce", [64 << 20], algorithms=["ring"]).rows[0].time_s
    bytes_s = (64 << 20) * 30 / 16 / 200e9
    steps_s = 30 * (14 * 6e-6 + 2 * ALPHA_S) / 16
    assert time_s == pytest.approx(bytes_s + steps_s, rel=0.02)


@pytest.mark.parametrize(("hosts", "gpus", "stack"), [(2, 1, "ideal"), (2, 8, "kernel-tcp")])
def test_nothing_is_held_with_one_gpu_a_host_or_where_cores_move_the_bytes(tmp_path, hosts, gpus,
                                                                           stack):
    built = hosts_of(tmp_path, hosts=hosts, gpus=gpus, scenario={"stack": stack})
    assert paths(built, stack).limits is None


@pytest.mark.parametrize(("message", "launch", "steps"), [
    ("0.3us", "10us", True), ("3us", "10us", False), ("0.3us", "0s", False)])
def test_steps_are_those_of_kernels_whose_messages_cost_little(tmp_path, message, launch, steps):
    """A message that costs more, as TCPX's do by a fit to collectives, has them in its cost."""
    stack = IDEAL | {"cost_per_message": message, "launch": launch}
    assert paths(hosts_of(tmp_path, stacks={"ideal": stack}), "ideal").limits.steps is steps


@pytest.mark.parametrize("plan", [make_plan("tree", ranks=8, nbytes=GIB),
                                  nvls_plan(8, 8, GIB, 4, 0.85)])
def test_other_plans_inside_a_host_are_not_held(tmp_path, plan):
    assert limits(tmp_path, hosts=1).bytes_per_s(plan, SIMPLE) == np.inf


def paths(built, stack):
    site = Site(built, load_stack(stack, built.topology.stacks),
                Style.of(built.topology.scenarios[0], built.topology))
    gpus = np.arange(built.gpus)
    return Transport(built, site.stack, site.style).paths(gpus, np.roll(gpus, -1))
