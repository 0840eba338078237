"""Captures that are not whole: listed as far as they go, and one sentence."""

import gzip
import struct

import pytest

from harp.wire import Harp
from tests.harp.cli.said import say

ETHERNET = bytes(12) + b"\x08\x00"


def capture(link=1, frames=2, order="<"):
    """A capture of IPv4 and UDP with a HARP frame in each packet."""
    file = struct.pack(f"{order}IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link)
    for number in range(frames):
        frame = bytes(Harp(type="PROBE", connection=1, packet=number))
        udp = struct.pack(">HHHH", 7000, 7001, 8 + len(frame), 0) + frame
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0,
                         bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])) + udp
        packet = ETHERNET + ip
        file += struct.pack(f"{order}IIII", 1, number, len(packet), len(packet)) + packet
    return file


def damaged(data):
    """The same with bytes in the middle that no compressor writes."""
    return data[:12] + b"\xff" * 30 + data[42:]


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_whole_capture_is_listed(tmp_path, order):
    for name, data in (("plain", capture(order=order)), ("gz", gzip.compress(capture(), mtime=0))):
        (tmp_path / name).write_bytes(data)
        done = say("decode", tmp_path / name)
        assert done.exit_code == 0, done.output
        assert done.stdout.count("PROBE") >= 2


@pytest.mark.parametrize(("data", "listed", "sentence"), [
    (b"", 0, "it is empty"),
    (b"hello, I am a text file", 0, "it is no capture"),
    (capture()[:10], 0, "it ends amid its header"),
    (capture()[:-5], 1, "it ends amid packet 2: it was copied or written in part"),
    (capture()[:30], 0, "it ends amid packet 1"),
    (capture(link=127), 0, "its packets are of link type 127, in which no IP is looked for"),
    (capture(frames=1) + b"\xff" * 40, 1, "packet 2 is damaged: it states 4294967295 bytes"),
    (gzip.compress(capture(), mtime=0)[:-20], 0, "it is compressed and ends amid its content"),
    (damaged(gzip.compress(capture(), mtime=0)), 0, "it is compressed and damaged"),
    (struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28) + b"\x06\0\0\0", 0,
     "it ends amid block 2"),
])
def test_a_capture_that_is_not_whole_is_listed_as_far_as_it_goes(tmp_path, data, listed, sentence):
    (tmp_path / "capture").write_bytes(data)
    done = say("decode", tmp_path / "capture")
    assert (done.exit_code, sentence in done.stderr) == (2, True), done.output
    assert done.stdout.count(" PROBE ") >= listed
    assert "0 packets that are not" not in done.stdout or listed


@pytest.mark.parametrize(("name", "sentence"), [(".", "is a directory"),
                                                ("nothing", "no such file or directory")])
def test_an_unreadable_file_is_named(tmp_path, name, sentence):
    done = say("decode", tmp_path / name)
    assert (done.exit_code, sentence in done.stderr) == (2, True), done.output
