"""Published figures of a file, by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.records.results import Expectation

if TYPE_CHECKING:
    from sim.schema.topology_model import Topology


def find_expect(topology: Topology, scenario: str, gpus: int, job: str) -> Expectation | None:
    """The published figure of a row, if the file has one for this cluster."""
    if topology.is_elsewhere:
        return None
    for expect in topology.expect:
        if (expect.scenario, expect.gpus) == (scenario, gpus) and (expect.job or "") == job:
            return Expectation(expect.images_per_s, expect.kind, expect.within, expect.source)
    return None
