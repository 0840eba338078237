"""``--pcap``: what crosses a link of the packet network, as tshark and scapy read it."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from scapy.layers.inet import IP, UDP
from scapy.utils import rdpcap

from harp.wire import Harp
from sim.run import main
from tests.sim.network.packet.packet_net import SEGMENT, Net
from tests.support import PATIENCE_S, ROOT

if TYPE_CHECKING:
    from pathlib import Path

BONDED = str(ROOT / "topologies" / "bonded-ecmp-2x4.yaml")
MESSAGE = 16 * SEGMENT


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Four senders into one port that marks, captured there."""
    net = Net(5, mark_bytes=32 << 10)
    pairs = [(source, 4) for source in range(4)]
    channels = [net.connect(*pair) for pair in pairs]
    for number, channel in enumerate(channels):
        net.world.name_path(channel, 0, (0x0A000001 + number, 0x0A0000FF), (50000 + number, 4791))
    path = tmp_path / "port.pcap"
    net.world.capture(net.down[4], str(path), 1 << 30)
    net.move(pairs, channels, MESSAGE)
    assert net.world.end_capture()
    assert net.world.link_counts(net.down[4]).packets == len(rdpcap(str(path)))
    return path


def test_scapy_finds_every_byte_of_every_message(capture: Path) -> None:
    data = [frame for frame in rdpcap(str(capture)) if Harp(bytes(frame[UDP].payload)).type == 4]
    for source in range(4):
        sent = [Harp(bytes(frame[UDP].payload)) for frame in data
                if frame[IP].src == f"10.0.0.{source + 1}" and frame[UDP].sport == 50000 + source]
        assert {frame.offset for frame in sent} == set(range(0, MESSAGE, SEGMENT))
    times = [float(frame.time) for frame in data]
    assert times == sorted(times)
    assert {frame[IP].tos for frame in data} == {2, 3}  # ECT(0), and CE where the port marked


def test_tshark_finds_nothing_wrong(capture: Path, tmp_path: Path) -> None:
    tshark = shutil.which("tshark")
    if tshark is None and os.geteuid() != 0:
        pytest.skip("tshark is missing and there is no right to install it")
    assert tshark, "tshark is missing: apt-get install tshark"
    done = subprocess.run(
        [tshark, "-X", f"lua_script:{ROOT / 'harp' / 'wire.lua'}", "-d", "udp.port==4791,harp",
         "-r", str(capture), "-T", "fields", "-e", "harp.type", "-e", "_ws.expert.message"],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
        env=os.environ | {"HOME": str(tmp_path)})
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert sum(row[0] == "4" for row in rows) >= 4 * MESSAGE // SEGMENT
    assert not [row for row in rows if row[1]]


@pytest.mark.parametrize(("arguments", "says"), [
    (["--fidelity", "packet", "--pcap", "x.pcap"], "give LINK=FILE"),
    (["--fidelity", "packet", "--pcap", "nolink=x.pcap"],
     "'nolink' is not one of the fabric's 48 links, e.g. 'node-0/bond0->leaf0#1'"),
    (["--pcap", "a->b=x.pcap"], "needs --fidelity packet"),
    (["--fidelity", "packet", "--pcap", "node-0/bond0->leaf0=x.pcap"],
     "captures one row, but 6 would run"),
    (["--fidelity", "packet", "--scenario", "1 channel, one path", "--pcap",
      "node-0/bond0->leaf9#2=x.pcap"], "did you mean 'node-0/bond0->leaf0#2'?"),
])
def test_wrong_captures_are_refused(arguments: list[str], says: str, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, [BONDED, *arguments])
    assert done.exit_code == 2
    assert says in done.output
    assert not list(tmp_path.iterdir())
