"""``harp decode``: captures of real connections, whole and damaged."""

import contextlib
import json
import re
import socket

import pytest
from click.testing import CliRunner
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap

import harp
from harp.cli.decode import decode
from harp.wire import Close, Harp, seal
from harp.wire_sums import key_hello
from lab.namespace import why_unusable
from lab.veth import veth_pair

PATIENCE_S = 30


def run(*arguments):
    return CliRunner().invoke(decode, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def connection(tmp_path_factory):
    """Capture a connection between two namespaces: (packets, handle, file)."""
    if why_unusable():
        pytest.skip(why_unusable())
    with veth_pair() as (a, b):
        with b.space.entered():
            sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            sniffer.bind((b.device, 0))
            sniffer.setblocking(False)
            far_engine = harp.Engine("udp", address=b.ipv4)
        with a.space.entered(), sniffer, far_engine, \
                harp.Engine("udp", address=a.ipv4) as near_engine:
            listener = far_engine.listen()
            near = near_engine.connect(listener.handle, timeout=PATIENCE_S)
            far = listener.accept(PATIENCE_S)
            near.send(bytes(20_000))
            far.recv(timeout=PATIENCE_S)
            near.flush(PATIENCE_S)
            near.close()
            with pytest.raises(harp.Closed):
                far.recv(timeout=PATIENCE_S)
            near_engine.close(linger=PATIENCE_S)  # until the answer to CLOSE is here
            packets = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    packets.append(Ether(sniffer.recv(1 << 17)))
    file = tmp_path_factory.mktemp("capture") / "connection.pcap"
    wrpcap(str(file), packets)
    return packets, listener.handle, file


def test_every_frame_of_a_connection_is_shown_and_holds(connection):
    _, handle, file = connection
    result = run(file, "--secret", handle.to_bytes().hex())
    assert result.exit_code == 0, result.output
    *lines, _, counts, tags, crcs = result.output.splitlines()
    assert all("[tag ok, crc ok]" in line for line in lines)
    kinds = [line.split()[4] for line in lines]
    assert kinds[:2] == ["FIRST", "ACCEPT"]
    assert {"DATA", "ACK", "PROBE"} <= set(kinds)
    assert kinds.count("CLOSE") >= 2  # who waits long for the answer sends it again
    payload, again = map(int, re.search(r"(\d+) bytes of .*, (\d+) chunks", counts).groups())
    assert payload == 20_000 or (again and payload > 20_000)  # who is off the CPU sends once more
    assert tags == f"tags: {len(lines)} ok, 0 BAD, 0 unknown"
    assert crcs == f"CRCs: {len(lines)} ok, 0 BAD, 0 unknown"
    assert run(file, "--secret", handle.secret.hex()).output == result.output


def test_without_the_secret_tags_are_unknown_and_another_one_does_not_hold(connection):
    *_, file = connection
    result = run(file, "--summary")
    assert result.exit_code == 0
    assert "tags: 0 ok, 0 BAD, " in result.output
    result = run(file, "--summary", "--secret", "00" * 16)
    assert result.exit_code == 1
    assert "1 BAD" in result.output  # FIRST; without it no other key is known


def test_a_flipped_bit_is_found(connection, tmp_path):
    packets, handle, _ = connection
    damaged = [packet.copy() for packet in packets]
    victim = next(packet for packet in damaged if UDP in packet and len(packet) > 1400
                  and bytes(packet[UDP].payload)[1] == 4)
    data = bytearray(bytes(victim[UDP].payload))
    data[100] ^= 1
    victim[UDP].remove_payload()
    victim[UDP].add_payload(Raw(bytes(data)))
    wrpcap(str(tmp_path / "damaged.pcap"), damaged)
    result = run(tmp_path / "damaged.pcap", "--secret", handle.to_bytes().hex(), "--bad")
    assert result.exit_code == 1
    shown = [line for line in result.output.splitlines() if "[tag" in line]
    assert len(shown) == 1
    assert "[tag ok, crc BAD]" in shown[0]


def test_json_is_a_line_a_frame(connection):
    _, handle, file = connection
    result = run(file, "--json", "--secret", handle.to_bytes().hex())
    *said, last = [json.loads(line) for line in result.output.splitlines()]
    assert said[0]["type"] == "FIRST"
    assert last["summary"]["payload_bytes"] >= 20_000
    assert sum(last["summary"]["frames"].values()) == len(said)


def close_frame(listener=7):
    return seal(Harp(type="CLOSE", connection=listener, epoch=3) / Close(reason=1, text=b"bye\n"),
                key_hello(bytes(16), listener))


def test_ipv6_other_packets_and_ports(tmp_path):
    file = tmp_path / "made.pcap"
    ethernet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    wrpcap(str(file), [
        ethernet / IPv6(src="fd00::1", dst="fd00::2") / UDP(sport=700, dport=7000) / close_frame(),
        ethernet / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1, dport=2) / b"something else",
        ethernet / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=5, dport=6) / close_frame()])
    result = run(file)
    assert "[fd00::1]:700 > [fd00::2]:7000 CLOSE" in result.output
    assert "reason 1, the application closed with messages under way: 'bye\\n'" in result.output
    assert "1 packets that are not HARP's" in result.output
    assert "2 CLOSE" in result.output
    assert "1 CLOSE" in run(file, "--port", "7000").output


def test_a_capture_that_was_cut_says_so(tmp_path):
    file = tmp_path / "cut.pcap"
    whole = Ether() / IP(dst="10.0.0.2") / UDP(sport=5, dport=6) / close_frame()
    cut = Ether(bytes(whole)[:-3])
    wrpcap(str(file), [cut])
    assert "crc ?" in run(file).output


def test_a_file_without_a_capture_and_a_wrong_secret_are_refused(tmp_path):
    text = tmp_path / "text"
    text.write_text("no capture")
    result = run(text)
    assert result.exit_code == 2
    assert "is no capture" in result.output
    for secret in ("00", "zz"):
        result = run(text, "--secret", secret)
        assert result.exit_code == 2
        assert "--secret" in result.output
