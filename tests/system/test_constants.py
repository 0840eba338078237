"""Constants that stand in C and in Python on purpose are equal."""

from harp import wire
from harp._cnet import ffi, lib
from harp.net.errors import Reason


def enumerators(name: str, prefix: str) -> dict[int, str]:
    """Numbers and names of a C enum, the names without their prefix."""
    return {number: word.removeprefix(prefix)
            for number, word in ffi.typeof(f"enum {name}").elements.items()}


def test_wire_py_has_the_numbers_of_wire_h() -> None:
    assert wire.VERSION == lib.HARP_VERSION
    assert wire.HEADER_BYTES == lib.HARP_HEADER_BYTES
    assert wire.TAGGED_BYTES == lib.HARP_TAGGED_BYTES
    assert wire.JOINED_BYTES == lib.HARP_JOINED_BYTES
    assert wire.FRAGMENTS_MAX == lib.HARP_FRAGMENTS_MAX
    assert (wire.RUN, wire.RUN_MOST) == (lib.HARP_RUN, lib.HARP_RUN_MOST)
    assert wire.OFF_QUEUE == lib.HARP_ACK_OFF_QUEUE
    types = enumerators("harp_type", "HARP_")
    assert {8: "VERSION_NOTICE"} | {n: w for n, w in wire.TYPES.items() if n != 8} == types


def test_reasons_in_python_are_those_in_c() -> None:
    reasons = enumerators("harp_reason", "HARP_REASON_")
    assert {reason.value: reason.name for reason in Reason} == reasons
    assert set(wire.REASONS) == {number for number in reasons if number < Reason.SILENT}
