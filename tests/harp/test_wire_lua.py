"""The Wireshark dissector against the scapy layers, over the stored frames of every type."""

import json
import os
import shutil
import subprocess

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from harp.wire import OFF_QUEUE, VERSION, Ack, Close, Cookie, Harp, Parameters, Versions
from tests.support import PATIENCE_S, ROOT

CORPUS = ROOT / "tests" / "data" / "corpora" / "wire"
TSHARK = shutil.which("tshark")
# The dissector's names where they differ: a filter has one name space for all layers.
NAMES = {
    Parameters: {"connection": "own", "epoch": "own_epoch", "flags": "options",
                 "messages": "posted", "frames": "lent"},
    Ack: {"messages": "credit_messages", "bytes": "credit_bytes", "frames": "credit_frames"},
    Cookie: {}, Close: {}, Versions: {},
}

pytestmark = pytest.mark.skipif(TSHARK is None and os.geteuid() != 0,
                                reason="tshark is missing and there is no right to install it")


def dissected(frames, tmp_path):
    """tshark's fields of HARP in each frame: filter name without "harp." to text."""
    capture = tmp_path / "frames.pcap"
    wrpcap(str(capture), [Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
                          / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=4791, dport=4791) / frame
                          for frame in frames])
    assert TSHARK, "tshark is missing: apt-get install tshark"
    done = subprocess.run(
        [TSHARK, "-X", f"lua_script:{ROOT / 'harp' / 'wire.lua'}", "-d", "udp.port==4791,harp",
         "-r", str(capture), "-T", "json"],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        env=os.environ | {"HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr + done.stdout
    layers = [packet["_source"]["layers"]["harp"] for packet in json.loads(done.stdout)]
    return [{name.removeprefix("harp."): value for name, value in layer.items()}
            for layer in layers]


def said(value):
    """tshark's text as scapy's value."""
    if ":" in value:
        return bytes.fromhex(value.replace(":", ""))
    return int(value, 0)


def test_tshark_reads_what_scapy_reads(tmp_path):
    frames = [path.read_bytes() for path in sorted(CORPUS.iterdir())]
    known = [frame for frame in frames
             if len(frame) >= 44 and (frame[0] == VERSION or frame[1] == 8)]
    assert len(known) > 15
    for frame, seen in zip(known, dissected(known, tmp_path), strict=True):
        packet = Harp(frame)
        for field in packet.fields_desc:
            assert said(seen[field.name]) == packet.getfieldval(field.name)
        assert seen.get("crc_holds", "none") in (("1", "True") if frame[44:] else ("none",))
        body = packet.payload
        if body.__class__ not in NAMES:
            assert said(seen.get("payload", ":")) == bytes(body)
            continue
        for field in body.fields_desc:
            name = NAMES[body.__class__].get(field.name, field.name)
            value = body.getfieldval(field.name)
            if field.name == "text":
                assert seen.get("text", "") == value.decode()
            elif field.name != "zero" and value != b"":
                assert said(seen[name]) == value


def test_tshark_notices_what_is_wrong(tmp_path):
    frame = (CORPUS / "data-eager").read_bytes()
    spoilt, cut = frame[:-1] + b"!", frame[:-1]
    other = (CORPUS / "other-version").read_bytes()
    right, wrong_crc, wrong_length, foreign = (
        json.dumps(seen) for seen in dissected([frame, spoilt, cut, other], tmp_path))
    for text, sign in [(wrong_crc, "bad_crc"), (wrong_length, "bad_length"),
                       (foreign, "other_version")]:
        assert sign in text
        assert sign not in right


def test_tshark_names_the_packets_that_are_missing(tmp_path):
    (seen,) = dissected([(CORPUS / "ack-odd").read_bytes()], tmp_path)
    frame = Harp((CORPUS / "ack-odd").read_bytes())
    ack = frame[Ack]
    named = {int(number) for number in seen["missing"].split()}
    asked = {(frame.packet - 1 - i) % 2**32 for i in range(ack.bits)}
    assert named == asked - ack.arrived(frame.packet)


def test_tshark_shows_a_wrong_queue(tmp_path):
    frame = (CORPUS / "ack-odd").read_bytes()
    off = frame[:3] + bytes([OFF_QUEUE]) + frame[4:]
    capture = tmp_path / "info.pcap"
    wrpcap(str(capture), [Ether() / IP(src="10.0.0.1", dst="10.0.0.2")
                          / UDP(sport=4791, dport=4791) / each for each in (frame, off)])
    done = subprocess.run(
        [str(TSHARK), "-X", f"lua_script:{ROOT / 'harp' / 'wire.lua'}", "-d",
         "udp.port==4791,harp", "-r", str(capture)],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
        env=os.environ | {"HOME": str(tmp_path)})
    plain, flagged = done.stdout.strip().splitlines()
    assert "wrong queue" in flagged
    assert "wrong queue" not in plain


def test_tshark_reads_all_frames_of_a_datagram(tmp_path):
    frames = [(CORPUS / name).read_bytes() for name in ("ack-odd", "data-eager", "ack-odd")]
    capture = tmp_path / "joined.pcap"
    wrpcap(str(capture), [Ether() / IP(src="10.0.0.1", dst="10.0.0.2")
                          / UDP(sport=4791, dport=4791) / b"".join(frames)])
    done = subprocess.run(
        [str(TSHARK), "-X", f"lua_script:{ROOT / 'harp' / 'wire.lua'}", "-d",
         "udp.port==4791,harp", "-r", str(capture), "-T", "fields", "-e", "harp.type",
         "-e", "harp.crc_holds", "-e", "_ws.col.Info"],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
        env=os.environ | {"HOME": str(tmp_path)})
    types, holds, info = done.stdout.strip().split("\t")
    assert types == "5,4,5"
    assert holds.replace("True", "1") == "1,1,1"
    assert info.count("ACK") == 2
