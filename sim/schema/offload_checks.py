"""Checks of offload: what it may stand beside, and whether hosts have the tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.schema.input_errors import Problem, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.schema.input_errors import Path
    from sim.schema.scenario_keys import Scenario, Workload
    from sim.schema.topology_model import Topology


def check_offload(topology: Topology, scenario: Scenario, path: Path) -> Iterator[Problem]:
    """Every problem with the offload of ``scenario``, which stands at ``path``."""
    if scenario.offload is None:
        return
    here = (*path, "offload")
    if scenario.layout.split > 1 or scenario.layout.shard == "hsdp":
        yield Problem("has no meaning beside a model that is split, or sharded within hosts alone",
                      path=here, at_key=True, allowed="parallel: data, zero1, zero2 or fsdp")
    if scenario.sync is not None:
        yield Problem("has no meaning beside sync", path=here, at_key=True,
                      allowed="offload or sync")
    for workload in topology.workloads_of(scenario):
        yield from _fits_workload(workload, here)
    yield from _tiers(topology, scenario, here)


def _fits_workload(workload: Workload, here: Path) -> Iterator[Problem]:
    if workload.trace is not None:
        yield Problem("has no meaning for execution traces", path=here, at_key=True,
                      allowed="a model under workload")
    elif workload.gradients != "as-precision":
        yield Problem("has no meaning beside gradients of their own type: pages have one",
                      path=here, at_key=True, allowed="gradients: as-precision under workload")
    elif workload.has_network and any(layer.expert_tensors for layer in workload.network.layers):
        yield Problem(f"has no meaning for experts, which {show(workload.network.name)} has",
                      path=here, at_key=True, allowed="a model without experts")


def _tiers(topology: Topology, scenario: Scenario, here: Path) -> Iterator[Problem]:
    assert scenario.offload is not None
    for number, group in enumerate(topology.hosts):
        if group.ram is None:
            yield Problem(f"hosts {group.name} have no ram, to which {show(scenario.name)} "
                          "offloads", path=("hosts", number), allowed="ram: 256GiB, say")
        elif scenario.offload.to == "disk" and group.disk is None:
            yield Problem(f"hosts {group.name} have no disk, to which {show(scenario.name)} "
                          "offloads", path=("hosts", number),
                          allowed="disk: {capacity: 1TB, read: 3GB/s}, say")
        if scenario.offload.device is None and group.gpus.memory_bytes is None:
            yield Problem(f"the memory of a {group.gpus.model} is unknown", path=here,
                          at_key=True, allowed="device: 16GiB, say, under offload")
