"""Quantities: exact both ways, and never another error than the one for the user."""

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.schema.input_errors import Problem, nearest
from sim.schema.units import COMPUTE_RATE, DURATION, PACKET_RATE, RATE, SHARE, SIZE, Unit

UNITS = [RATE, DURATION, SIZE, PACKET_RATE, COMPUTE_RATE, SHARE]
units = st.sampled_from(UNITS)


@pytest.mark.parametrize(("unit", "text", "value"), [
    (RATE, "25Gbps", 25e9),
    (RATE, "150GB/s", 1.2e12),
    (RATE, "1 bps", 1.0),
    (RATE, " 0.1 kB/s ", 800.0),
    (RATE, "1.5e3Mbps", 1.5e9),
    (DURATION, "3us", 3e-6),
    (DURATION, "0.1ns", 1e-10),
    (DURATION, "1.5h", 5400.0),
    (SIZE, "2MiB", 2097152),
    (SIZE, "1500B", 1500),
    (SIZE, "0.5KiB", 512),
    (SIZE, "1GB", 10**9),
    (PACKET_RATE, "2.5Mpps", 2.5e6),
    (COMPUTE_RATE, "23.4TFLOPS", 23.4e12),
    (SHARE, "2%", 0.02),
    (SHARE, "100 %", 1.0),
    (SHARE, 0.02, 0.02),
    (SHARE, 1, 1.0),
])
def test_a_quantity_is_parsed_to_its_si_value(unit, text, value):
    assert unit.parse(text) == value
    assert isinstance(unit.parse(text), int if unit is SIZE else float)


def test_bits_and_bytes_differ_by_eight():
    for prefix in ("", "k", "M", "G", "T"):
        assert RATE.parse(f"1{prefix}B/s") == 8 * RATE.parse(f"1{prefix}bps")


@pytest.mark.parametrize("text", [
    25, 25.0, True, None, [], {}, "", "Gbps", "25", "25 Gb ps", "25gbps", "25GBps", "25Gbps,",
    "-1Gbps", "0Gbps",
    "+0Gbps", "nan", "nanGbps", "infGbps", "1e999Gbps", "0x10Gbps", "1_000Gbps", "1,5Gbps",
    "٣Gbps", "25Gbps25Gbps", ".5Gbps", "5.Gbps", "9" * 1000 + "Gbps", "1e-999Gbps", "25Gbps\n\n#",
])
def test_a_text_that_is_no_rate_is_refused(text):
    with pytest.raises(Problem) as caught:
        RATE.parse(text)
    assert caught.value.allowed


@settings(deadline=None)  # a busy machine may take its time
@given(units, st.floats(0, 1))
def test_formatting_and_parsing_give_the_number_back(unit, place):
    value = min(max(unit.least * (unit.most / unit.least)**place, unit.least), unit.most)
    if unit is SIZE:
        value = int(value)
    text = unit.format(value)
    assert unit.parse(text) == value
    assert len(text) < 40


@given(units, st.integers(1, 10**6), st.data())
def test_the_text_of_a_parsed_quantity_is_a_fixed_point(unit, number, data):
    spelling = data.draw(st.sampled_from(list(unit.scales)))
    if unit is SHARE:
        number = number % 100 + 1
    assume(unit.least <= number * float(unit.scales[spelling]) <= unit.most)
    value = unit.parse(f"{number}{spelling}")
    assert unit.parse(unit.format(value)) == value
    assert len(unit.format(value)) <= len(f"{number}{spelling}")


@given(units, st.one_of(st.text(), st.from_regex(r"[0-9.eE+-]{1,30} ?[a-zA-Z%/]{0,6}")))
def test_any_text_is_a_quantity_or_a_problem(unit: Unit, text: str):
    try:
        value = unit.parse(text)
    except Problem:
        return
    assert unit.least <= value <= unit.most


@pytest.mark.parametrize(("unit", "text", "right"), [
    (RATE, "25Gb/s", "25Gbit/s"), (RATE, "25GBps", "25GB/s"), (RATE, "25gbps", "25Gbps"),
    (RATE, "1.5TB", "1.5TB/s"), (RATE, "100Gb", "100Gbps"), (RATE, "1_000Gbps", None),
    (RATE, "1,000Gbps", None), (SIZE, "16gb", "16GB"), (DURATION, "3usec", "3us")])
def test_the_nearest_right_text_means_as_much(unit: Unit, text: str, right: str | None) -> None:
    with pytest.raises(Problem) as caught:
        unit.parse(text)
    assert nearest(caught.value.found, caught.value.names) == right


@pytest.mark.parametrize(("unit", "text"), [
    (RATE, "1e-300bps"), (RATE, "0.5bps"), (RATE, "1e19bps"), (COMPUTE_RATE, "1e-300FLOPS"),
    (PACKET_RATE, "1e-300pps"), (SHARE, 1e-300), (SHARE, "1e-7%"), (DURATION, "1e30s"),
    (DURATION, "1e-300s"),
])
def test_quantities_that_no_machine_has_are_refused_with_their_range(unit, text):
    with pytest.raises(Problem) as caught:
        unit.parse(text)
    assert "out of range" in caught.value.says
    assert re.search(r"from \S+ to \d+", caught.value.allowed)


@given(units, st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.binary(),
                        st.lists(st.integers()), st.dictionaries(st.text(), st.text())))
def test_anything_but_text_is_a_problem_unless_a_share_stands_bare(unit, value):
    try:
        parsed = unit.parse(value)
    except Problem:
        return
    assert unit is SHARE
    assert parsed == value
