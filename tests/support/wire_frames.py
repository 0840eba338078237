"""Frames of the wire format, drawn and made: for C (cnet) and for scapy layers."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from scapy.packet import Raw

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
    seal,
)

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
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
