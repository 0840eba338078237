"""HARP's ports as host stacks give back the rows of docs/results/speed.md that they come from."""

from __future__ import annotations

import numpy as np
import pytest

from sim.network.flow.fluid import Fluid
from sim.network.transport import Style, Transport
from sim.schema.parameters import load_stack
from tests.support.cluster_files import cluster


def rate_bps(folder, stack, mtu, engines=1.0):
    """Payload bits/s from one process to another on a line that never binds."""
    made = cluster(folder, rate_bps=1e12, fabric={"template": "single-switch", "mtu": f"{mtu}B"},
                   stacks={"own": {"base": stack, "flow_rate": "1Tbps", "threads": engines}},
                   scenario={"stack": "own"}, host={"cores": 64, "memory": "100TB/s"})
    transport = Transport(made, load_stack("own", made.topology.stacks),
                          Style.of(made.topology.scenarios[0], made.topology))
    paths = transport.paths([0], [1])
    net = Fluid(made.capacities(transport.stack))
    net.add_routes(*paths.footprints(np.arange(1), np.ones(1)))
    return 8 * net.state(net.start(np.arange(1), np.ones(1), ceilings=paths.ceiling))[0][0]


@pytest.mark.parametrize(("stack", "mtu", "wanted"), [
    ("harp-xdp", 1500, 8.0e9), ("harp-xdp", 3400, 16.9e9), ("harp", 1500, 54e9)])
def test_an_engine_moves_what_the_benchmark_measured(tmp_path, stack, mtu, wanted):
    assert rate_bps(tmp_path, stack, mtu) == pytest.approx(wanted, rel=0.03)


def test_engines_add_up_until_cores_or_memory_bind(tmp_path):
    one, four = (rate_bps(tmp_path, "harp-xdp", 1500, engines) for engines in (1.0, 4.0))
    assert four == pytest.approx(4 * one)


def test_a_copy_more_never_makes_a_port_faster(tmp_path):
    for mtu in (1500, 3400):
        assert rate_bps(tmp_path, "harp-xdp-zc", mtu) > rate_bps(tmp_path, "harp-xdp", mtu)
    zero, copy = (load_stack(name).memory_per_byte.value for name in ("harp-xdp-zc", "harp-xdp"))
    assert zero < copy
