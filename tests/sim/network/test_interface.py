"""The interface between jobs and networks: each fidelity has all of it."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from sim.network import interface
from sim.network.fidelity import NETWORKS

COMMUNICATORS = {"flow": "sim.network.flow.flow_communicator:FlowCommunicator",
                 "packet": "sim.network.packet.packet_communicator:PacketCommunicator",
                 "lab": "sim.network.lab.lab_network:LabCommunicator"}


def found(place: str) -> type:
    module, name = place.split(":")
    kind = getattr(import_module(module), name)
    assert isinstance(kind, type)
    return kind


def calls(kind: type) -> dict[str, object]:
    return {name: member for name, member in vars(kind).items()
            if not name.startswith("_") and inspect.isfunction(member)}


@pytest.mark.parametrize(("place", "asked"), [
    *((place, interface.Network) for place in NETWORKS.values()),
    *((place, interface.Communicator) for place in COMMUNICATORS.values())])
def test_a_fidelity_takes_the_calls_that_the_interface_names(place, asked):
    kind, wanted = found(place), calls(asked)
    assert len(wanted) >= 2
    for name, member in wanted.items():
        named = list(inspect.signature(member).parameters)
        taken = list(inspect.signature(getattr(kind, name)).parameters)
        assert taken[:len(named)] == named, f"{place}: {name}"


def test_two_sites_are_the_same_only_if_they_are_one():
    """Networks are kept by their site, and a cluster is too large to compare."""
    one, other = (interface.Site(None, None, None) for _ in range(2))
    assert one == one  # noqa: PLR0124  equality is what is tested
    assert one != other
    assert len({one, other}) == 2
