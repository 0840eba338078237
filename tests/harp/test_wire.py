"""The wire format: C (cnet) against scapy layers written from the same page, both ways."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

import harp.wire
import harp.wire_sums
from harp import wire_sums
from harp._cnet import ffi, lib
from harp.wire import Ack, Harp, Parameters, holds, seal
from tests.support.wire_frames import KEYS, LAPS, OK, c_key, decode, frames, opens, patient, sealed

FIELDS = ["version", "type", "path", "flags", "connection", "epoch", "length", "packet", "message",
          "offset", "size", "crc"]


@patient
@given(frames(), KEYS, LAPS)
def test_c_reads_frames_of_scapy(frame, key, lap):
    fields, _ = frame
    data = sealed(frame, key, lap)
    error, header = decode(data)
    assert error == OK
    expected = {"version": lib.HARP_VERSION, "length": len(data) - 44,
                "crc": wire_sums.crc32c(data[44:])} | fields
    assert {name: getattr(header, name) for name in FIELDS} == dict.fromkeys(FIELDS, 0) | expected
    assert opens(data, key, lap)
    assert not opens(data, key, lap ^ 1)
    assert not opens(data, bytes(b ^ 1 for b in key), lap)


@patient
@given(frames(), KEYS, LAPS)
def test_scapy_dissects_frames_of_c(frame, key, lap):
    fields, body = frame
    payload = bytes(body)
    header = ffi.new("struct harp_header *",
                     {"version": lib.HARP_VERSION, "length": len(payload)} | fields)
    out = ffi.new("uint8_t[44]")
    lib.harp_header_encode(header, out)
    lib.harp_seal(c_key(key), out, lap, payload, len(payload))
    data = bytes(out) + payload
    assert data == sealed(frame, key, lap)
    assert holds(data, key, lap)
    assert not holds(data, key, lap ^ 2**23)
    seen = Harp(data)
    for name, value in fields.items():
        assert getattr(seen, name) == value
    if not isinstance(body, bytes):
        assert seen.payload.fields == body.__class__(payload).fields
        assert seen.payload.fields.items() >= body.fields.items()
    elif body:
        assert seen[Raw].load == body


@patient
@given(frames(), KEYS, st.data())
def test_any_flipped_bit_is_noticed(frame, key, data):
    sent = sealed(frame, key)
    anywhere = data.draw(st.lists(st.integers(0, len(sent) * 8 - 1), max_size=20))
    for bit in {*range(44 * 8), *anywhere}:
        flipped = bytearray(sent)
        flipped[bit // 8] ^= 1 << bit % 8
        if bit < 44 * 8:
            assert not lib.harp_open_tag(c_key(key), bytes(flipped), 0)
        assert not opens(bytes(flipped), key)


def test_addresses_are_read_as_text():
    four = bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 7]) + (4791).to_bytes(2, "little")
    six = bytes([0xfd] + [0] * 14 + [1]) + (80).to_bytes(2, "little")
    said = Parameters(addresses=four + bytes(18) + six)
    assert said.known() == [("10.0.0.7", 4791), ("fd00::1", 80)]


@patient
@given(frames(types=(4,)), KEYS)
def test_sealing_and_opening_with_a_copy(frame, key):
    wanted = sealed(frame, key)
    payload = wanted[44:]
    header = ffi.new("uint8_t[44]", wanted[:32] + bytes(12))
    lib.harp_seal_known(c_key(key), header, 9, 5)
    assert bytes(header)[32:36] == b"\5\0\0\0"
    assert lib.harp_open_tag(c_key(key), header, 9)
    back = ffi.new("uint8_t[]", len(payload) + 1)
    assert lib.harp_open_crc(wanted, lib.harp_crc32c_copy(back, payload, len(payload)))
    assert bytes(back)[:-1] == payload
    if payload:
        wrong = bytes([payload[0] ^ 1]) + payload[1:]
        assert not lib.harp_open_crc(wanted, lib.harp_crc32c_copy(back, wrong, len(payload)))


@patient
@given(st.lists(st.tuples(st.binary(min_size=36, max_size=36), LAPS, st.booleans()), max_size=64),
       KEYS)
def test_many_tags_at_once(many, key):
    headers = [ffi.new("uint8_t[44]", covered + bytes(8)) for covered, *_ in many]
    laps = [lap for _, lap, _ in many]
    lib.harp_seal_tags(c_key(key), headers, laps, len(headers))
    for header, (covered, lap, spoil) in zip(headers, many, strict=True):
        assert bytes(header)[:36] == covered
        assert lib.harp_open_tag(c_key(key), header, lap)
        header[43] ^= 0x80 * spoil
    good = lib.harp_open_tags(c_key(key), headers, laps, len(headers))
    assert good == sum(1 << i for i, (*_, spoil) in enumerate(many) if not spoil)


@patient
@given(KEYS, st.binary(max_size=100))
def test_sums_of_c_and_of_python_agree(key, data):
    assert lib.harp_siphash(c_key(key), data, len(data)) == wire_sums.siphash(key, data)
    assert lib.harp_crc32c(data, len(data)) == wire_sums.crc32c(data)


def test_udp_of_a_bound_port_is_dissected():
    harp.wire.bind(4791)
    frame = seal(Harp(type="ACK", path=2, packet=9) / Ack(bits=2, map=b"\2"), bytes(16))
    packet = IP(bytes(IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1, dport=4791) / frame))
    assert packet[Ack].arrived(9) == {7}
    assert packet[Harp].path == 2


@pytest.mark.parametrize("module", [harp.wire, harp.wire_sums])
def test_examples_of_the_manual(module):
    assert doctest.testmod(module).failed == 0
