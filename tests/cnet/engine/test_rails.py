"""Several NICs for one connection: who is paired with whom, and what happens when a rail dies."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from harp._cnet import ffi, lib
from harp.net import Completion, Engine, Handle, Port, Timeout
from lab.c_programs import build, library, run
from lab.namespace import why_unusable
from lab.veth import Net
from tests.support import PATIENCE_S
from tests.support.levels import long_except

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lab.namespace import Namespace

needs_namespaces = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
MESSAGE = bytes(range(256)) * 4096  # 1 MiB
DATAGRAM_BYTES = 832
"""What Linux counts for a short datagram that waits, its sk_buff included."""


def test_ports_are_paired_with_addresses(tmp_path: Path) -> None:
    run(build(tmp_path / "rails", ["tests/cnet/engine/test_rails.c", str(library())]))


class Rails:
    """Two hosts with some NICs each, joined NIC by NIC, and a connection over all of them."""

    def __init__(self, net: Net, kind: str, *, nics: int = 2, swapped: bool = False,
                 down: int | None = None, addresses: int = lib.HARP_HANDLE_ADDRESSES,
                 beside: str | None = None, late: bool = False) -> None:
        a, b = net.namespace(), net.namespace()
        self.pairs = [net.connect(a, b) for _ in range(nics)]
        with b.entered():
            ports = [Port(each, interface=end.device) for each in (beside, kind) if each
                     for _, end in self.pairs]
            self.far_engine = Engine(ports[::-1] if swapped else ports,
                                     progress="manual" if late else "thread")
            self.listener = self.far_engine.listen(paths=nics)
        with a.entered():
            self.near_engine = Engine([Port(kind, interface=end.device) for end, _ in self.pairs])
            if down is not None:
                self.pull(down)
            handle = cut(self.listener.handle, addresses)
            self.near = self.near_engine.start(handle, paths=nics)
        if late:
            wait_for_datagrams(b, 2)
            self.drive_far(lambda: is_settled(self.near.connected))
        self.near.connected.wait(PATIENCE_S)
        self.far = self.listener.accept(timeout=PATIENCE_S)

    def drive_far(self, until: Callable[[], bool]) -> None:
        """Take turns of an engine that has no thread, in its namespace."""
        until_s = time.monotonic() + PATIENCE_S
        with self.pairs[0][1].space.entered():
            while not until():
                assert time.monotonic() < until_s
                self.far_engine.drive()

    def joined(self) -> set[tuple[str, str]]:
        """Addresses that the near end's paths join."""
        return {(host(path.local), host(path.remote)) for path in self.near.paths}

    def pull(self, rail: int) -> None:
        self.set_link(rail, "down")

    def put_back(self, rail: int) -> None:
        self.set_link(rail, "up")

    def set_link(self, rail: int, state: str) -> None:
        end = self.pairs[rail][0]
        end.space.run("ip", "link", "set", end.device, state)

    def close(self) -> None:
        self.near_engine.close()
        self.far_engine.close()

    def begin(self, messages: int) -> list[tuple[Completion, bytearray]]:
        """Post buffers for messages each way, and send them."""
        posted = []
        for end in (self.near, self.far):
            for _ in range(messages):
                buffer = bytearray(len(MESSAGE))
                posted.append((end.post(buffer), buffer))
        sent = [end.send(MESSAGE) for end in (self.near, self.far) for _ in range(messages)]
        return posted + [(one, bytearray(MESSAGE)) for one in sent]

    def transfer(self, messages: int = 8) -> None:
        """Send messages each way at once, and demand that they come whole."""
        finish(self.begin(messages))

    def sent(self) -> list[int]:
        """Packets that both ends have sent on each rail."""
        return [sum(path.state["sent"] for end in (self.near, self.far) for path in end.paths
                    if {host(path.local), host(path.remote)} == {pair[0].ipv4, pair[1].ipv4})
                for pair in self.pairs]


def wait_for_datagrams(space: Namespace, count: int) -> None:
    """Wait until this many short ones are in a socket that nobody reads."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        waiting = max(int(line.split()[1]) for line in space.run("ss", "-uanH").splitlines())
        if waiting >= count * DATAGRAM_BYTES:
            return
    pytest.fail(f"{waiting} bytes wait")


def is_settled(completion: Completion) -> bool:
    with suppress(Timeout):
        completion.wait(0)
    return completion.settled


def cut(handle: Handle, addresses: int) -> Handle:
    """The handle with only its first addresses."""
    data = handle.to_bytes()
    start = ffi.offsetof("struct harp_handle", "addresses")
    kept = start + addresses * ffi.sizeof("struct harp_address")
    return Handle.from_bytes(data[:kept].ljust(len(data), b"\0"))


def host(address: str) -> str:
    return address.removeprefix("tcp:").split(":", maxsplit=1)[0]


def finish(begun: list[tuple[Completion, bytearray]]) -> None:
    for completion, buffer in begun:
        completion.wait(20)
        assert buffer == MESSAGE


@contextmanager
def rails(kind: str, **options: Any) -> Iterator[Rails]:
    with Net() as net:
        made = Rails(net, kind, **options)
        try:
            yield made
        finally:
            made.close()


@needs_namespaces
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("kind", ["udp", "xdp", "tcp"])
def test_both_rails_carry_data_whatever_the_order_of_addresses(kind: str, swapped: bool) -> None:
    with rails(kind, swapped=swapped) as world:
        transfer_on_all_rails(world)


def transfer_on_all_rails(world: Rails) -> None:
    for _ in range(50):
        world.transfer()
        if min(world.sent()) > 1000:
            return
    pytest.fail(f"packets on the rails: {world.sent()}")


@needs_namespaces
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("kind", ["udp", "xdp", "tcp"])
def test_a_handle_of_one_address_is_enough_for_all_rails(kind: str, swapped: bool) -> None:
    with rails(kind, swapped=swapped, addresses=1) as world:
        transfer_on_all_rails(world)


@needs_namespaces
def test_an_answer_on_a_path_between_two_rails_leaves_no_rail_idle() -> None:
    """A listener on a busy host reads the first try, and one from the other NIC, together."""
    with rails("udp", addresses=1, late=True) as world:
        wanted = {(pair[0].ipv4, pair[1].ipv4) for pair in world.pairs}
        world.drive_far(lambda: world.joined() == wanted)


@needs_namespaces
@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_more_nics_than_a_handle_has_addresses(kind: str) -> None:
    with rails(kind, nics=6) as world:
        transfer_on_all_rails(world)


@needs_namespaces
def test_ports_of_two_kinds_share_a_handle() -> None:
    with rails("tcp", nics=4, beside="udp") as world:
        transfer_on_all_rails(world)


@needs_namespaces
def test_a_rail_carries_as_much_as_it_delivers() -> None:
    """Rates so low that the queues, and not a busy host, are what holds the rails back."""
    with rails("udp") as world:
        for rail, rate_bps in enumerate((60_000_000, 20_000_000)):
            for end in world.pairs[rail]:
                end.shape(rate_bps, queue_bytes=256 << 10)
        world.transfer(8)
        fast, slow = world.sent()
        assert 2 < fast / slow < 4.5


@needs_namespaces
@pytest.mark.parametrize("kind", ["udp", "xdp", "tcp"])
def test_more_paths_than_rails_leave_by_other_udp_ports(kind: str) -> None:
    with Net() as net:
        a, b = net.namespace(), net.namespace()
        pairs = [net.connect(a, b), net.connect(a, b)]
        with b.entered():
            far = Engine([Port(kind, interface=end.device) for _, end in pairs])
            listener = far.listen(paths=4)
        with a.entered():
            near = Engine([Port(kind, interface=end.device, locals=2) for end, _ in pairs])
            connection = near.connect(listener.handle, paths=4, timeout=PATIENCE_S)
        assert len({path.local for path in connection.paths}) == 4
        near.close()
        far.close()


@needs_namespaces
@pytest.mark.parametrize("kind", long_except(["udp", "xdp", "tcp"], "udp", "tcp"))
def test_a_rail_that_is_pulled_and_put_back_ends_nothing(kind: str) -> None:
    with rails(kind) as world:
        for rail in (1, 0):
            begun = world.begin(64)
            begun[0][0].wait(20)
            world.pull(rail)
            finish(begun)
            world.transfer()
            world.put_back(rail)
            before = world.sent()[rail]
            while world.sent()[rail] < before + 1000:
                world.transfer()


@needs_namespaces
@pytest.mark.parametrize("down", [0, 1])
@pytest.mark.parametrize("kind", ["udp", "xdp", "tcp"])
def test_a_rail_that_is_down_at_connect_is_passed_over(kind: str, down: int) -> None:
    with rails(kind, down=down) as world:
        world.transfer()
        assert world.sent()[1 - down] > 250  # frames of 64 KiB by tcp


@needs_namespaces
@pytest.mark.parametrize("kind", long_except(["udp", "xdp", "tcp"], "xdp"))
def test_frames_on_a_pulled_rail_hold_up_no_connection(kind: str) -> None:
    # Together they put more on it than its ring takes; the other rail has room for all of them.
    with rails(kind) as world:
        with world.pairs[0][0].space.entered():
            nears = [world.near_engine.connect(world.listener.handle, paths=2, timeout=PATIENCE_S)
                     for _ in range(100)]
        fars = [world.listener.accept(timeout=PATIENCE_S) for _ in nears]
        buffers = [bytearray(len(MESSAGE)) for _ in fars]
        pulled_in_time = False
        for each in (4, 16, 64):  # on a busy machine the first ones are through before the pull
            posted = [far.post(buffer) for far, buffer in zip(fars, buffers, strict=True)
                      for _ in range(each)]
            sent = [near.send(MESSAGE) for near in nears for _ in range(each)]
            world.pull(1)
            pulled_in_time = not sent[-1].done()
            for done in sent + posted:
                done.wait(20)
            if pulled_in_time:
                break
            world.put_back(1)
        assert pulled_in_time
