"""Bodies of control frames against scapy layers, both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harp._cnet import ffi, lib
from harp.wire import Ack, Close, Parameters, Versions
from tests.support.wire_frames import OK, acks, closes, parameters, patient, versions

CODECS = {
    "parameters": (parameters(), Parameters),
    "ack": (acks(), Ack),
    "close": (closes(), Close),
    "versions": (versions(), Versions),
}


@pytest.mark.parametrize("name", CODECS)
@patient
@given(data=st.data())
def test_bodies_both_ways(name, data):
    strategy, layer = CODECS[name]
    wanted = data.draw(strategy)
    built = bytes(layer(**wanted))
    value = ffi.new(f"struct harp_{name} *")
    read, write = getattr(lib, f"harp_{name}_decode"), getattr(lib, f"harp_{name}_encode")
    assert read(built, len(built), value) == OK
    for field in wanted.keys() - {"text", "map", "nonce", "cookie", "addresses"}:
        assert getattr(value, field) == wanted[field]
    for field in wanted.keys() & {"text", "map", "nonce", "cookie"}:
        room = bytes(getattr(value, field))
        assert room == wanted[field].ljust(len(room), b"\0")
    if name == "parameters":
        read_addresses = [bytes(one.ip) + one.port.to_bytes(2, "little")
                          for one in value.addresses[0:value.addresses_n]]
        assert b"".join(read_addresses) == wanted["addresses"]
    out = ffi.new("uint8_t[168]")
    written = write(value, out)
    assert bytes(out)[:written] == built
    for length in [*range(len(built)), len(built) + 1]:
        cut = (built + b"\0")[:length]
        fits = {"close": range(4, 125), "parameters": range(60, 151, 18)}.get(name, ())
        if length in fits:
            assert read(cut, length, value) == OK
        else:
            assert read(cut, length, value) != OK


@pytest.mark.parametrize(("layer", "error"), [
    (Parameters(connection=1), "OK"), (Parameters(connection=0), "LIMIT"),
    (Parameters(connection=1, segment=127), "LIMIT"), (Parameters(connection=1, paths=0), "LIMIT"),
    (Parameters(connection=1, paths=257), "LIMIT"), (Parameters(connection=1, flags=2), "UNUSED"),
    (Parameters(connection=1, traffic_class=252), "OK"),
    (Parameters(connection=1, traffic_class=2), "UNUSED"),
    (Parameters(connection=1, addresses=bytes(90)), "OK"),
    (Parameters(connection=1, addresses=bytes(108)), "LENGTH"),
    (Parameters(connection=1, addresses=bytes(17)), "LENGTH"),
    (Parameters(connection=1, addresses=bytes([1] + [0] * 17)), "UNUSED"),  # without a port
    (Ack(bits=1025, map=bytes(129)), "LIMIT"), (Ack(zero=1), "UNUSED"),
    (Ack(bits=7, map=b"\x80"), "UNUSED"), (Ack(bits=8, map=b"\x80"), "OK"),
    (Ack(bits=9, map=b"\x80"), "LENGTH"),
    (Versions(lowest=2, highest=1), "LIMIT"), (Versions(zero=1), "UNUSED"),
])
def test_strict_bodies(layer, error):
    name = layer.__class__.__name__.lower()
    body = bytes(layer)
    value = ffi.new(f"struct harp_{name} *")
    got = getattr(lib, f"harp_{name}_decode")(body, len(body), value)
    assert got == getattr(lib, f"HARP_WIRE_{error}")
