"""Fidelity packet against closed forms: the forms themselves, and one message of each stack."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records.reference_rows import JUMBO_HARP, JUMBO_TCP, Wire
from sim.validation.closed_forms import HOP_S, RATE, STACKS, run_plan, short_s
from sim.validation.fidelities import KIB, MIB, pattern

WIRES = st.sampled_from([JUMBO_HARP, JUMBO_TCP])


def test_stacks_have_the_frames_of_the_cluster() -> None:
    """9,000 B of IP and 38 B of Ethernet; HARP fills whole 128 B of payload."""
    assert JUMBO_TCP.whole == 9000 + 38
    assert JUMBO_HARP.payload % 128 == 0
    assert 9000 + 38 - 128 < JUMBO_HARP.whole <= 9000 + 38
    assert [wire for _, wire, _ in STACKS] == [JUMBO_HARP, JUMBO_TCP]


@given(WIRES, st.integers(1, 16 * MIB))
def test_a_message_takes_both_links_for_its_first_frame_and_one_for_the_rest(
        wire: Wire, nbytes: int) -> None:
    frames = [min(wire.payload, nbytes - at) + wire.headers
              for at in range(0, nbytes, wire.payload)]
    assert short_s(wire, nbytes) == pytest.approx(
        2 * HOP_S + (frames[0] + sum(frames)) / RATE)


@pytest.mark.parametrize(("wire", "changes"), [(wire, changes) for _, wire, changes in STACKS],
                         ids=[name for name, *_ in STACKS])
@pytest.mark.parametrize("nbytes", [4 * KIB, 64 * KIB])
def test_one_message_takes_what_its_form_says(wire: Wire, changes: tuple[str, ...],
                                              nbytes: int) -> None:
    assert run_plan(pattern([0], [1], nbytes), changes) == pytest.approx(
        short_s(wire, nbytes), rel=0.02)
