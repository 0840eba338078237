"""The wire format: C (cnet) against scapy layers written from the same page, both ways."""

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

import harp.wire
import harp.wire_sums
from harp import wire_sums
from harp._cnet import ffi, lib
from harp.wire import (
    FRAGMENTS_MAX,
    OFF_QUEUE,
    RUN,
    RUN_MOST,
    Ack,
    Close,
    Cookie,
    Harp,
    Parameters,
    Versions,
    holds,
    seal,
)

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
FIELDS = ["version", "type", "path", "flags", "connection", "epoch", "length", "packet", "message",
          "offset", "size", "crc"]
KEYS = st.binary(min_size=16, max_size=16)
LAPS = st.sampled_from([0, 1, 2**16, 2**24 - 1]) | st.integers(0, 2**24 - 1)
OK = lib.HARP_WIRE_OK
patient = settings(deadline=None)  # the machine may be busy


def c_key(key):
    value = ffi.new("struct harp_key *")
    value.low, value.high = (int.from_bytes(half, "little") for half in (key[:8], key[8:]))
    return value


def py_key(key):
    return key.low.to_bytes(8, "little") + key.high.to_bytes(8, "little")


def decode(frame):
    header = ffi.new("struct harp_header *")
    return lib.harp_header_decode(frame, len(frame), header), header


def opens(frame, key, lap=0):
    """Tag and CRC by the C code, in the order of docs/inside/wire.md."""
    return bool(lib.harp_open_tag(c_key(key), frame, lap)
                and lib.harp_open_payload(frame, frame[44:], len(frame) - 44))


@st.composite
def chunks(draw):
    """DATA fields and payload: a last chunk, one before it, or a message of no bytes."""
    length = draw(st.sampled_from([0, 128, 256, 1408]) | st.integers(1, 2000))
    offset = 128 * draw(st.integers(0, (2**30 - length) // 128)) if length else 0
    size = offset + length
    begin = offset - offset % length if length else 0
    if length and length % 128 == 0 and begin + length < 2**30 and draw(st.booleans()):
        offset = begin
        size = draw(st.integers(offset + length + 1, 2**30))
    return {"message": draw(U32), "offset": offset, "size": size}, draw(
        st.binary(min_size=length, max_size=length))


@st.composite
def fragments(draw):
    """The same for a fragment, whose length need not divide its offset."""
    last = draw(st.booleans())
    length = draw(st.integers(1, 2000)) if last else 128 * draw(st.integers(1, 15))
    offset = 128 * draw(st.integers(0, (2**30 - length) // 128 - 1))
    size = offset + length if last else draw(st.integers(offset + length + 1, 2**30))
    return {"flags": draw(st.integers(2, FRAGMENTS_MAX)), "message": draw(U32), "offset": offset,
            "size": size}, draw(st.binary(min_size=length, max_size=length))


@st.composite
def runs(draw):
    """The same for several chunks in a row; the last may end its message."""
    length, chunks = 128 * draw(st.integers(1, 12)), draw(st.integers(2, RUN_MOST))
    offset = length * draw(st.integers(0, 2**30 // length - chunks))
    last = draw(st.integers(1, length))
    size = offset + (chunks - 1) * length + last
    if last == length:
        size = draw(st.integers(size, 2**30))
    return {"flags": RUN + chunks, "length": length, "message": draw(U32), "offset": offset,
            "size": size}, draw(st.binary(min_size=16, max_size=16)).ljust(
                (chunks - 1) * length + last, b"r")


@st.composite
def parameters(draw):
    return {"connection": draw(st.integers(1, 2**64 - 1)), "nonce": draw(KEYS), "epoch": draw(U16),
            "segment": draw(st.integers(128, 2**16 - 1)), "paths": draw(st.integers(1, 256)),
            "flags": draw(st.integers(0, 1)), "traffic_class": 4 * draw(st.integers(0, 63)),
            "messages": draw(U32), "frames": draw(U32), "first": draw(U32), "cookie": draw(KEYS),
            "addresses": b"".join(draw(st.lists(addresses(), max_size=5)))}


def addresses():
    """An address and its port, or room for them."""
    return st.just(bytes(18)) | st.builds(lambda ip, port: ip + port.to_bytes(2, "little"),
                                          KEYS, st.integers(1, 2**16 - 1))


@st.composite
def acks(draw):
    bits = draw(st.integers(0, 1024))
    bitmap = draw(st.integers(0, 2**bits - 1)).to_bytes((bits + 7) // 8, "little")
    return {"delay_ns": draw(U32), "sent_ns": draw(U32), "messages": draw(U64), "bytes": draw(U64),
            "frames": draw(U64), "marked": draw(U32), "bits": bits, "map": bitmap}


@st.composite
def versions(draw):
    lowest = draw(U8)
    return {"lowest": lowest, "highest": draw(st.integers(lowest, 255))}


def closes():
    return st.fixed_dictionaries({"reason": U32, "text": st.binary(max_size=120)})


@st.composite
def frames(draw, types=tuple(range(1, 9))):
    """(type, header fields by name, body as scapy layer or bytes)."""
    kind = draw(st.sampled_from(types))
    fields = {"type": kind, "connection": draw(U64)}
    if kind not in (1, 8):
        fields["epoch"] = draw(U16)
    if kind != 8:
        fields["path"] = draw(U8)
    if kind == 5:
        fields["flags"] = draw(st.sampled_from([0, OFF_QUEUE]))
    if kind in (4, 5, 6):
        fields["packet"] = draw(U32)
    if kind == 8:
        fields["version"] = draw(U8)
    if kind == 4:
        chunk, body = draw(chunks() | fragments() | runs())
        fields |= chunk
    elif kind == 6:
        body = draw(st.binary(max_size=1500))
    else:
        body = {1: lambda: Parameters(**draw(parameters())),
                2: lambda: Cookie(cookie=draw(KEYS)),
                3: lambda: Parameters(**draw(parameters())),
                5: lambda: Ack(**draw(acks())),
                7: lambda: Close(**draw(closes())),
                8: lambda: Versions(**draw(versions()))}[kind]()
    return fields, body


def sealed(frame, key, lap=0):
    fields, body = frame
    layer = Raw(body) if isinstance(body, bytes) else body
    return seal(Harp(**fields) / layer if body else Harp(**fields), key, lap)


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
@given(st.lists(st.tuples(frames(), KEYS), min_size=1, max_size=8))
def test_frames_of_one_datagram_are_separated(several):
    """DATA and ACK may follow one another, all together in 1,024 bytes; other types come alone."""
    each = [sealed(frame, key) for frame, key in several]
    datagram = b"".join(each)
    kinds = [fields["type"] for (fields, _) in (frame for frame, _ in several)]
    found, at = [], 0
    while at < len(datagram):
        bytes_n = lib.harp_wire_first_frame(datagram[at:], len(datagram) - at)
        found.append(datagram[at:at + bytes_n])
        at += bytes_n
    if len(datagram) <= 1024:
        assert found == harp.wire.frames(datagram)
        if all(kind in (4, 5) for kind in kinds[:-1]):
            assert found == each
    else:
        assert harp.wire.frames(datagram) == [datagram]


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


@patient
@given(frames(), KEYS)
def test_every_other_length_is_refused(frame, key):
    sent = sealed(frame, key)
    for length in range(len(sent)):
        error, _ = decode(sent[:length])
        assert error == (lib.HARP_WIRE_SHORT if length < 44 else lib.HARP_WIRE_LENGTH)
    assert decode(sent + b"\0")[0] == lib.HARP_WIRE_LENGTH


@patient
@given(runs(), KEYS)
def test_chunks_of_a_run_are_those_that_might_have_come_alone(run, key):
    fields, body = run
    error, header = decode(sealed(({"type": 4, "packet": 2**32 - 2} | fields, body), key))
    assert error == OK
    chunk, at = ffi.new("struct harp_header *"), 0
    for k in range(fields["flags"] - RUN):
        assert lib.harp_header_chunk(header, k, chunk)
        assert lib.harp_header_check(chunk) == OK
        assert (chunk.flags, chunk.offset) == (0, fields["offset"] + at)
        assert chunk.packet == (2**32 - 2 + k) % 2**32
        at += chunk.length
    assert not lib.harp_header_chunk(header, fields["flags"] - RUN, chunk)
    assert at == len(body)


def data_header(**changes):
    return bytes(Harp(**{"type": 4, "size": 128, "length": 128} | changes)) + bytes(
        changes.get("length", 128))


@pytest.mark.parametrize(("changes", "error"), [
    ({}, "OK"),
    ({"type": 0}, "TYPE"), ({"type": 9}, "TYPE"), ({"type": 255}, "TYPE"),
    ({"flags": 1}, "CHUNK"), ({"flags": 65}, "CHUNK"), ({"flags": 64}, "OK"),
    ({"flags": 2, "length": 256, "offset": 128, "size": 1000}, "OK"),  # its chunk began there
    ({"flags": 2, "length": 256, "offset": 64, "size": 1000}, "CHUNK"),
    ({"flags": 2, "length": 200, "offset": 128, "size": 1000}, "CHUNK"),
    ({"flags": 2, "length": 200, "offset": 128, "size": 328}, "OK"),
    ({"flags": 2, "length": 0, "size": 0}, "CHUNK"),
    ({"flags": 0x82, "size": 129}, "LENGTH"),                      # a run of two chunks, one came
    ({"flags": 0x82, "size": 128}, "CHUNK"),                       # and no second one
    ({"flags": 0x81, "size": 256}, "CHUNK"), ({"flags": 0x80, "length": 0, "size": 1}, "CHUNK"),
    ({"flags": 0x82, "offset": 256, "size": 256}, "CHUNK"),
    ({"offset": 1, "size": 129}, "CHUNK"),                         # offset not a multiple of 128
    ({"size": 129}, "OK"),                                         # there is a chunk after it
    ({"length": 100, "size": 200}, "CHUNK"),                       # only a last chunk may be odd
    ({"length": 100, "size": 100}, "OK"),
    ({"length": 256, "offset": 128, "size": 1000}, "CHUNK"),       # offset no multiple of length
    ({"length": 256, "offset": 128, "size": 384}, "OK"),           # the last one's may be any
    ({"size": 127}, "CHUNK"), ({"offset": 128}, "CHUNK"),          # beyond the end
    ({"offset": 2**32 - 128, "size": 2**30}, "CHUNK"),
    ({"offset": 2**32 - 128, "size": 0}, "CHUNK"),                 # the sum wraps to size
    ({"offset": 2**30 - 128, "size": 2**30}, "OK"),
    ({"offset": 2**30 - 128, "size": 2**30 + 1}, "CHUNK"),
    ({"length": 0, "size": 0}, "OK"), ({"length": 0, "size": 1}, "CHUNK"),
    ({"length": 0, "size": 0, "message": 7}, "OK"),
    ({"length": 0, "size": 0, "crc": 1}, "UNUSED"),
    ({"type": 6}, "UNUSED"), ({"type": 6, "size": 0}, "OK"),
    ({"type": 6, "size": 0, "message": 1}, "UNUSED"),
    ({"type": 6, "size": 0, "offset": 1}, "UNUSED"),
    ({"type": 5, "size": 0, "flags": 1}, "OK"), ({"type": 5, "size": 0, "flags": 2}, "UNUSED"),
    ({"type": 6, "size": 0, "flags": 1}, "UNUSED"),
    ({"type": 5, "size": 0}, "OK"), ({"type": 5, "size": 0, "length": 169}, "LENGTH"),
    ({"type": 5, "size": 0, "length": 39}, "LENGTH"),
    ({"type": 7, "size": 0, "length": 4, "packet": 1}, "UNUSED"),
    ({"type": 7, "size": 0, "length": 3}, "LENGTH"),
    ({"type": 7, "size": 0, "length": 125}, "LENGTH"),
    ({"type": 1, "size": 0, "length": 60, "epoch": 1}, "UNUSED"),
    ({"type": 1, "size": 0, "length": 60, "path": 1}, "OK"),
    ({"type": 8, "size": 0, "length": 4, "path": 1}, "UNUSED"),
    ({"type": 8, "size": 0, "length": 4, "epoch": 1}, "UNUSED"),
    ({"type": 5, "size": 0, "length": 40, "packet": 1}, "OK"),
    ({"type": 1, "size": 0, "length": 59}, "LENGTH"),
    ({"type": 1, "size": 0, "length": 150}, "OK"),
    ({"type": 1, "size": 0, "length": 151}, "LENGTH"),
    ({"type": 3, "size": 0, "length": 151}, "LENGTH"),
    ({"type": 2, "size": 0, "length": 15}, "LENGTH"),
    ({"type": 8, "size": 0, "length": 5}, "LENGTH"),
    ({"version": 0}, "VERSION"), ({"version": 1, "type": 77, "flags": 3, "size": 9}, "VERSION"),
    ({"version": 9, "type": 8, "size": 0, "length": 4}, "OK"),
])
def test_strict_header(changes, error):
    got, _ = decode(data_header(**changes))
    assert got == getattr(lib, f"HARP_WIRE_{error}")


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


def test_addresses_are_read_as_text():
    four = bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 7]) + (4791).to_bytes(2, "little")
    six = bytes([0xfd] + [0] * 14 + [1]) + (80).to_bytes(2, "little")
    said = Parameters(addresses=four + bytes(18) + six)
    assert said.known() == [("10.0.0.7", 4791), ("fd00::1", 80)]


def test_another_version_is_recognised():
    error, header = decode(data_header(version=4, connection=2**63))
    assert (header.version, header.type, header.connection) == (4, 4, 2**63)
    assert error == lib.HARP_WIRE_VERSION


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


@patient
@given(KEYS, U64, st.tuples(U64, U16, KEYS), st.tuples(U64, U16, KEYS))
def test_keys_of_c_and_of_python_agree(secret, listener, one, two):
    ends = [wire_sums.End(*end) for end in (one, two)]
    c_ends = [ffi.new("struct harp_end *", end._asdict()) for end in ends]
    c_secret = c_key(secret)
    assert py_key(lib.harp_key_hello(c_secret, listener)) == wire_sums.key_hello(secret, listener)
    assert (py_key(lib.harp_key_accept(c_secret, listener, c_ends[0]))
            == wire_sums.key_accept(secret, listener, ends[0]))
    assert py_key(lib.harp_key_up(c_secret, *c_ends)) == wire_sums.key_up(secret, *ends)
    assert py_key(lib.harp_key_down(c_secret, *c_ends)) == wire_sums.key_down(secret, *ends)


def test_udp_of_a_bound_port_is_dissected():
    harp.wire.bind(4791)
    frame = seal(Harp(type="ACK", path=2, packet=9) / Ack(bits=2, map=b"\2"), bytes(16))
    packet = IP(bytes(IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1, dport=4791) / frame))
    assert packet[Ack].arrived(9) == {7}
    assert packet[Harp].path == 2


@pytest.mark.parametrize("module", [harp.wire, harp.wire_sums])
def test_examples_of_the_manual(module):
    assert doctest.testmod(module).failed == 0
