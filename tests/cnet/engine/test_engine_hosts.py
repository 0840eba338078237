"""Engines on two hosts: namespaces joined by veth, over udp, over xdp, and one of each."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from lab.c_programs import build, library
from lab.namespace import why_unusable
from lab.veth import End, veth_pair
from tests.support import PATIENCE_S
from tests.support.levels import each_once

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("engine") / "peer",
                 ["tests/cnet/engine/engine_peer.c", str(library())])


def talk(peer: Path, ends: tuple[End, End], ports: tuple[str, str], kind: str, *,
         paths: int = 1, ipv6: bool = False, messages: int = 100, largest: int = 100_000,
         ) -> tuple[str, str]:
    """Let the second end listen and the first connect; return what both printed."""
    a, b = ends
    common = [kind, str(paths), str(messages), str(largest)]
    server = b.space.start(peer, ports[1], b.device, b.ipv6 if ipv6 else "-", *common,
                           stdout=subprocess.PIPE, text=True)
    assert server.stdout
    handle = server.stdout.readline().strip()
    assert handle
    said = a.space.run(peer, ports[0], a.device, a.ipv6 if ipv6 else "-", *common, handle)
    heard, _ = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 0, heard
    return said, heard


@pytest.mark.parametrize(("ports", "kind"), each_once(
    [("udp", "udp"), ("xdp", "xdp"), ("xdp", "udp"), ("udp", "xdp")],
    ["posted", "streamed", "drafts"]))
def test_peers_on_any_port_understand_each_other(
        peer: Path, ports: tuple[str, str], kind: str) -> None:
    with veth_pair() as ends:
        said, heard = talk(peer, ends, ports, kind)
        assert "segment 1408" in said
        assert "segment 1408" in heard


@pytest.mark.parametrize("ports", [("udp", "udp"), ("xdp", "xdp")])
def test_ipv6(peer: Path, ports: tuple[str, str]) -> None:
    with veth_pair() as ends:
        talk(peer, ends, ports, "posted", ipv6=True)


@pytest.mark.parametrize("ports", [("udp", "udp"), ("xdp", "xdp"), ("udp", "xdp")])
def test_jumbo_frames(peer: Path, ports: tuple[str, str]) -> None:
    with veth_pair(mtu=9000) as ends:
        said, _ = talk(peer, ends, ports, "posted", largest=400_000)
        most = 3584 if "xdp" in ports else 8832  # an xdp packet has one frame
        assert f"segment {most}" in said


@pytest.mark.parametrize("ports", [("udp", "udp"), ("xdp", "xdp")])
def test_several_paths(peer: Path, ports: tuple[str, str]) -> None:
    with veth_pair(queues=2) as ends:
        talk(peer, ends, ports, "posted", paths=4)


def test_ends_with_different_mtus_agree_on_the_lower(peer: Path) -> None:
    with veth_pair(mtu=9000) as (a, b):
        a.space.run("ip", "link", "set", a.device, "mtu", "1500")
        said, _ = talk(peer, (a, b), ("udp", "udp"), "posted")
        assert "segment 1408" in said


@pytest.mark.parametrize("connections", [1, 64])
def test_a_killed_process_is_noticed_by_all_connections_to_it_at_once(
        tmp_path: Path, connections: int) -> None:
    """Its host answers once a second for each other host (icmp_ratelimit), not for each of them."""
    gone = build(tmp_path / "gone", ["tests/cnet/engine/engine_gone.c", str(library())])
    with veth_pair() as (a, b):
        server = b.space.start(gone, b.ipv4, str(connections), stdout=subprocess.PIPE, text=True)
        assert server.stdout
        handle = server.stdout.readline().strip()
        client = a.space.start(gone, a.ipv4, str(connections), handle, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
        assert client.stdout
        assert client.stdout.readline() == "connected\n"
        server.kill()
        server.wait()
        took, _ = client.communicate("killed\n", timeout=PATIENCE_S)
        assert client.returncode == 0
        print(f"{connections} connections learnt of it after {took.strip()} ms")
        assert int(took) < 30_000  # 1,400 on a host at rest; one a second would be 64,000
