"""Headers of frames: what is read, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harp.wire
from harp._cnet import ffi, lib
from harp.wire import RUN, Harp
from tests.support.wire_frames import KEYS, OK, decode, frames, patient, runs, sealed


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


def test_another_version_is_recognised():
    error, header = decode(data_header(version=4, connection=2**63))
    assert (header.version, header.type, header.connection) == (4, 4, 2**63)
    assert error == lib.HARP_WIRE_VERSION
