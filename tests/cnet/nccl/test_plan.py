"""HARP_PLAN: the plugin listens on a plan's ports, and its connections leave by the plan's."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from lab.c_programs import build, library, run
from lab.namespace import Namespace, why_unusable
from lab.nccl_pair import Pair, client, harp, run_pair
from lab.veth import End, Net, veth_pair
from tests.cnet.nccl.asked_plugin import add_links, ask, warnings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

root_only = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
HOME = "10.77.0.1"  # of eth0, as add_links gives it
NO_RANK = dict.fromkeys(("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"),
                        "")


def test_the_reader_of_plans(tmp_path: Path) -> None:
    run(build(tmp_path / "plan", ["tests/cnet/nccl/test_plan.c", "cnet/nccl/plan.c",
                                  "cnet/nccl/json_reader.c",
                                  str(library())]))


def plan(*listens: str | list[str], flows: tuple[tuple[int, str, str], ...] = (),
         mbps: int = 1) -> dict[str, Any]:
    """A plan of ranks that listen at one address each, or at several."""
    each = [[listen] if isinstance(listen, str) else listen for listen in listens]
    return {"format": "harp-plan-1", "fabric": "0123456789abcdef",
            "ranks": [{"rank": rank, "listen": own, "mbps": [mbps] * len(own)}
                      for rank, own in enumerate(each)],
            "flows": [{"from": rank, "to": 1 - rank, "source": source, "target": target}
                      for rank, source, target in flows]}


@pytest.fixture
def space() -> Iterator[Namespace]:
    with Net() as net:
        made = net.namespace()
        add_links(made, "eth0")
        yield made


def ask_with(space: Namespace, file: Path, content: object, **settings: str) -> Any:
    """The plugin's lines when it listens and follows this plan."""
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return ask("listen", before=tuple(space.command()),
               **{**NO_RANK, "HARP_PORT": "udp", "HARP_PLAN": str(file), **settings})


def said(found: dict[str, Any]) -> str:
    return "\n".join(text for _, text in found["said"])


@root_only
@pytest.mark.parametrize("variable", NO_RANK)
def test_a_rank_listens_where_the_plan_says(space: Namespace, tmp_path: Path,
                                            variable: str) -> None:
    found = ask_with(space, tmp_path / "p", plan(f"{HOME}:61000", f"{HOME}:61001"),
                     **{variable: "1"})
    assert found["listen"] == 0
    assert warnings(found) == []
    assert "this is rank 1 of plan" in said(found)
    assert f"{HOME}:61001" in said(found)


@root_only
def test_the_only_rank_of_a_host_needs_no_number(space: Namespace, tmp_path: Path) -> None:
    found = ask_with(space, tmp_path / "p", plan("10.9.9.9:61000", f"{HOME}:61005"))
    assert warnings(found) == []
    assert f"{HOME}:61005" in said(found)


MISFITS = {
    "another host": (plan("10.9.9.9:61000"), {},
                     "none of its 1 ranks listens at an address of this host"),
    "another host's rank": (plan(f"{HOME}:61000", "10.9.9.9:61000"), {"RANK": "1"},
                            "its rank 1 listens at no address of this host"),
    "no such rank": (plan(f"{HOME}:61000"), {"RANK": "4"}, "it has no rank 4, only 1 others"),
    "who am I": (plan(f"{HOME}:61000", f"{HOME}:61001"), {},
                 "2 of its ranks are on this host and nothing says which this is: set RANK"),
    "a NIC that is gone": (plan([f"{HOME}:61000", "10.9.9.9:61000"]), {},
                           "its rank 0 has the NIC 10.9.9.9, and this host uses none with that "
                           "address: the fabric has changed, so make it anew with harp plan"),
    "a slower NIC": (plan(f"{HOME}:61000", mbps=25000), {"HARP_SPEED": "10000"},
                     "it counts on 25000 Mb/s of the NIC 10.77.0.1, which has 10000: the fabric "
                     "has changed, so make it anew with harp plan"),
    "old format": ({**plan(f"{HOME}:61000"), "format": "harp-path-plan-1"}, {},
                   'its format is "harp-path-plan-1" and this HARP reads harp-plan-1'),
    "ports of TCP": ({**plan(f"{HOME}:61000"), "protocol": "tcp"}, {},
                     "it plans ports of TCP, and data goes over packets of HARP's own: set "
                     "HARP_PORT=tcp, or protocol: udp in the job"),
    "ports of UDP": (plan(f"{HOME}:61000"), {"HARP_PORT": "tcp"},
                     "it plans ports of UDP, and data goes over kernel TCP: set HARP_PORT=udp, or "
                     "protocol: tcp in the job"),
    "an unknown protocol": ({**plan(f"{HOME}:61000"), "protocol": "sctp"}, {},
                            'its protocol is "sctp", and there are udp and tcp'),
    "no JSON": ("plan: here\n", {}, "line 1 is no plan's: expected {"),
    "cut off": ('{"format": "harp-plan-1",\n "ranks": [', {}, "line 2 is no plan's: expected {"),
    "no port": (plan(HOME), {}, "line 1 is no plan's: expected an address and port"),
    "no target": ({**plan(f"{HOME}:61000"), "flows": [{"from": 0, "source": "10.0.0.1:1"}]}, {},
                  "line 1 is no plan's: expected from, source and target in each flow"),
}


@root_only
@pytest.mark.parametrize("case", MISFITS)
def test_a_plan_that_does_not_fit_is_one_line_and_no_error(space: Namespace, tmp_path: Path,
                                                           case: str) -> None:
    content, settings, sentence = MISFITS[case]
    found = ask_with(space, tmp_path / "p", content, **settings)
    assert (found["init"], found["listen"]) == (0, 0)
    line, = warnings(found)
    assert f"HARP_PLAN {tmp_path / 'p'} is not followed, paths are hashed: " in line
    assert sentence in line


@root_only
def test_a_plan_that_is_missing_is_one_line(space: Namespace, tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        found = ask("listen", before=tuple(space.command()), HARP_PORT="udp", HARP_PLAN=str(path))
        assert found["listen"] == 0
        line, = warnings(found)
        assert "it cannot be read: " in line


@root_only
def test_a_listening_port_that_is_taken_is_one_line(space: Namespace,
                                                    tmp_path: Path) -> None:
    with space.entered():
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with other:
        other.bind((HOME, 61000))
        found = ask_with(space, tmp_path / "p", plan(f"{HOME}:61000"))
    assert found["listen"] == 0
    line, = warnings(found)
    assert "HARP_PLAN: eth0 listens on another port than planned" in line
    assert "in use" in line


class Tap:
    """Ports, of UDP or TCP, source and target, of what arrives at an end."""

    def __init__(self, end: End, protocol: int = socket.IPPROTO_UDP) -> None:
        self.protocol = protocol
        with end.space.entered():
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self.socket.bind((end.device, 0x0800))
        self.socket.setblocking(False)

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def await_ports(self, wanted: set[tuple[int, int]]) -> None:
        """Wait until such packets come."""
        missing, until_s = set(wanted), time.monotonic() + 30
        while missing := missing - self.ports():
            assert time.monotonic() < until_s, f"nothing came by {missing}"
            time.sleep(0.01)

    def ports(self) -> set[tuple[int, int]]:
        found = set()
        while True:
            try:
                packet, about = self.socket.recvfrom(64)
            except BlockingIOError:
                return found
            if about[2] != socket.PACKET_OUTGOING and packet[9] == self.protocol:
                found.add((int.from_bytes(packet[20:22], "big"),
                           int.from_bytes(packet[22:24], "big")))


def run_ranks(tmp_path: Path, content: dict[str, Any], ends: tuple[End, End],
              first_port: str = "udp", **settings: str) -> tuple[Any, set[tuple[int, int]]]:
    """Two ranks of the client; what they say, and the ports of what comes to the second."""
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(content))
    tcp = first_port == "tcp"
    ports = (first_port, "tcp" if tcp else "udp")
    with Tap(ends[1], socket.IPPROTO_TCP if tcp else socket.IPPROTO_UDP) as tap:
        ended = run_pair(client(), harp(), ("fifo",), spaces=(ends[0].space, ends[1].space),
                         options=("--limit", "60", "--bound", "20"), settings=tuple(
                             {**NO_RANK, "HARP_PORT": ports[rank], "HARP_PLAN": str(file),
                              "RANK": str(rank), **settings} for rank in (0, 1)))
        assert ended.good, str(ended)
        return ended, tap.ports()


@root_only
@pytest.mark.parametrize("port", ["udp", "xdp", "tcp"])
def test_source_ports_on_the_wire_are_the_plans(tmp_path: Path, port: str) -> None:
    with veth_pair() as (a, b):
        listens = [f"{a.ipv4}:61000", f"{b.ipv4}:61000"]
        forth = [(0, f"{a.ipv4}:{61300 + n}", listens[1]) for n in range(3)]
        back = [(1, f"{b.ipv4}:{61400 + n}", listens[0]) for n in range(3)]
        content = {**plan(*listens, flows=(*forth, *back)),
                   "protocol": "tcp" if port == "tcp" else "udp"}
        ended, seen = run_ranks(tmp_path, content, (a, b), port, HARP_PATHS="3")
    answers = {(61000, 61400 + n) for n in range(3)}
    assert seen == {(61300 + n, 61000) for n in range(3)} | answers
    assert "HARP_PLAN" not in ended.logs[0] + ended.logs[1]


@root_only
def test_a_taken_source_port_is_one_line_and_the_rest_is_as_planned(tmp_path: Path) -> None:
    with veth_pair() as (a, b):
        listens = [f"{a.ipv4}:61000", f"{b.ipv4}:61000"]
        content = plan(*listens, flows=((0, f"{a.ipv4}:61300", listens[1]),
                                        (0, f"{a.ipv4}:61301", listens[1]),
                                        (1, f"{b.ipv4}:61400", listens[0])))
        with a.space.entered():
            other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with other:
            other.bind((a.ipv4, 61300))
            ended, seen = run_ranks(tmp_path, content, (a, b), HARP_PATHS="2")
        assert "leaves by another port than planned and is hashed" in ended.logs[0]
        assert "61300 cannot be had" in ended.logs[0]
        assert {source for source, target in seen if target == 61000} == {61000, 61301}


@root_only
def test_a_peer_without_the_plan_is_one_line(tmp_path: Path) -> None:
    with veth_pair() as (a, b):
        ended, _ = run_ranks(tmp_path, plan(f"{a.ipv4}:61000", f"{b.ipv4}:61000"), (a, b))
        count = ended.logs[0].count("HARP_PLAN has no flow from")
        assert count == 1, ended.logs[0]


@root_only
def test_each_rail_of_a_connection_has_flows_of_its_own(tmp_path: Path) -> None:
    """Paths of a device of two NICs: by each NIC to its partner, from that NIC's planned port."""
    with Net() as net:
        spaces = net.namespace(), net.namespace()
        rails = [net.connect(*spaces), net.connect(*spaces)]
        content: dict[str, Any] = {
            "format": "harp-plan-1", "fabric": "0123456789abcdef",
            "ranks": [{"rank": rank, "listen": [f"{rail[rank].ipv4}:61000" for rail in rails]}
                      for rank in (0, 1)],
            "flows": [{"from": rank, "to": 1 - rank, "target": f"{rail[1 - rank].ipv4}:61000",
                       "source": f"{rail[rank].ipv4}:{61300 + number}"}
                      for rank in (0, 1) for number, rail in enumerate(rails)]}
        with Tap(rails[0][1]) as first, Tap(rails[1][1]) as second:
            file = tmp_path / "plan.json"
            file.write_text(json.dumps(content))
            ended = run_pair(client(), harp(), ("fifo",), spaces=spaces,
                             options=("--limit", "60", "--bound", "20"), settings=tuple(
                                 {**NO_RANK, "HARP_PORT": "udp", "HARP_PLAN": str(file),
                                  "HARP_RAILS": f"{rails[0][0].device},{rails[1][0].device}",
                                  "RANK": str(rank)} for rank in (0, 1)))
            assert ended.good, str(ended)
            seen = [{ports for ports in tap.ports() if ports[1] == 61000}
                    for tap in (first, second)]
    assert seen == [{(61300, 61000)}, {(61301, 61000)}]
    assert "HARP_PLAN" not in ended.logs[0] + ended.logs[1]


@root_only
def test_a_revision_reaches_connections_that_work(tmp_path: Path) -> None:
    """The file is replaced under a job that sends; and then by what is no revision of it."""
    file, next_file = tmp_path / "plan.json", tmp_path / "next.json"

    def replace(content: dict[str, Any]) -> None:
        next_file.write_text(json.dumps(content))
        next_file.replace(file)

    with veth_pair() as (a, b), Tap(b) as tap:
        listens = [f"{a.ipv4}:61000", f"{b.ipv4}:61000"]
        back = (1, f"{b.ipv4}:61400", listens[0])

        def forth(*ports: int) -> dict[str, Any]:
            return plan(*listens, flows=(*((0, f"{a.ipv4}:{port}", listens[1]) for port in ports),
                                         back))
        replace(forth(61300, 61301))
        with Pair(client(), harp(), ("speed",), spaces=(a.space, b.space),
                  options=("--limit", "120", "--seconds", "90"), settings=tuple(
                      {**NO_RANK, "HARP_PORT": "udp", "HARP_PLAN": str(file), "RANK": str(rank),
                       "HARP_PATHS": "2"} for rank in (0, 1))) as pair:
            tap.await_ports({(61300, 61000), (61301, 61000)})
            replace(forth(61300, 61407))
            tap.await_ports({(61407, 61000)})
            replace(forth(61300))
            line = await_line(pair, "has changed and is not followed")
            assert [process.poll() for process in pair.ranks] == [None, None]
    assert "it has other ranks or flows than the one that this job was started with" in line


def await_line(pair: Pair, text: str) -> str:
    """The line that rank 0 writes about it while it works."""
    stderr = pair.ranks[0].stderr
    assert stderr is not None
    found = next((line for line in stderr if text in line), "")
    assert found, f"rank 0 ended and did not say that {text!r}"
    return found
