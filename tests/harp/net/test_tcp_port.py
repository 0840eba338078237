"""The tcp port: flows that break, stall, bring pieces or come from strangers."""

import contextlib
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import harp
from harp.cli.diagnose.snapshot import engines, ip_of
from lab.namespace import Namespace, why_unusable
from lab.veth import veth_pair
from tests.harp.net.pairs import PATIENCE_S, engine, pair, pattern

needs_namespaces = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
PORT_AT = 8 + 16 + 2
"""Offset of the first address's port in a handle."""
RUN_BYTES = 16 * 65_408
"""The longest run of chunks that one header is for, on loopback."""
FLIPPED = b"Z"
"""A relay flips payloads of this byte alone: no probe that goes by chance takes its flips."""


def port_of(address):
    """The port of an address such as tcp:10.0.0.1:7000."""
    return int(address.rsplit(":", 1)[1])


class Relay:
    """Pass TCP on to a port of this host, in pieces of random lengths; cut it at will."""

    def __init__(self, handle, seed):
        self._random = random.Random(seed)
        self._to = port_of(handle.addresses[0])
        self._listener = socket.create_server(("127.0.0.1", 0))
        data = bytearray(handle.to_bytes())
        struct.pack_into("<H", data, PORT_AT, self._listener.getsockname()[1])
        self.handle = harp.Handle(bytes(data))
        self.carried = 0
        self.flips = 0
        """Bytes of payloads of FLIPPED that are still to be changed on the way."""
        self._other = {}
        self._cut = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def cut(self):
        """End all connections that there are."""
        self._cut.set()

    def _run(self):
        while not self._end.is_set():
            if self._cut.is_set():
                self._drop(list(self._other))
                self._cut.clear()
            readable, _, _ = select.select([self._listener, *self._other], [], [], 0.02)
            for one in readable:
                if one is self._listener:
                    self._take()
                elif one in self._other:
                    self._pass_on(one)
        self._drop(list(self._other))

    def _take(self):
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._to))
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._other.update({near: far, far: near})

    def _pass_on(self, one):
        try:
            data = one.recv(self._random.choice((1, 7, 45, 5000, 200_000)))
            if data:
                self._other[one].sendall(self._flipped(data))
        except OSError:
            data = b""
        self.carried += len(data)
        if not data:
            self._drop([one])

    def _flipped(self, data):
        at = data.find(FLIPPED * 200)  # no header has so many, and padding is zeros
        if at < 0 or not self.flips:
            return data
        self.flips -= 1
        return data[:at + 100] + b"\xff" + data[at + 101:]

    def _drop(self, which):
        for one in which:
            other = self._other.pop(one, None)
            if other:
                self._other.pop(other)
                one.close()
                other.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()
        self._listener.close()


@contextlib.contextmanager
def pair_by_relay(seed, paths=1, **options):
    """Connect two engines through a relay: the two ends, and the relay."""
    options["paths"] = paths
    with engine("tcp", locals=paths) as a, engine("tcp", locals=paths) as b, \
            b.listen(**options) as listener, Relay(listener.handle, seed) as relay:
        one = a.connect(relay.handle, timeout=PATIENCE_S, **options)
        yield one, listener.accept(PATIENCE_S), relay


def carry(sender, receiver, sizes, meanwhile=lambda _: None):
    """Send messages of these sizes and check each; ``meanwhile`` is called before each."""
    for number, size in enumerate(sizes):
        meanwhile(number)
        into = np.zeros(size, np.uint8)
        posted = receiver.post(into)
        sent = sender.send(pattern(size, number))
        assert posted.wait(PATIENCE_S) == size
        assert np.array_equal(into, pattern(size, number))
        sent.wait(PATIENCE_S)


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_in_any_pieces_is_the_same_frames(seed):
    with pair_by_relay(seed) as (a, b, relay):
        for sender, receiver in ((a, b), (b, a)):
            carry(sender, receiver, (0, 1, 8191, 8192, 65_407, 65_408, 65_409, 700_001,
                                     RUN_BYTES, RUN_BYTES + 1))
        assert relay.carried > 5_600_000
        assert a.info.counters["bad_payloads"] == b.info.counters["bad_payloads"] == 0


@pytest.mark.parametrize("options", [{}, {"checksum": "on"}, {"read_early": True}, {"paths": 3}],
                         ids=["plain", "summed", "read early", "several flows"])
def test_messages_both_ways_at_once_in_any_pieces(options):
    sizes = random.Random(5).choices((0, 100, 70_000, 300_000, RUN_BYTES + 9), k=24)
    with pair_by_relay(5, **options) as ends:
        into = [[np.zeros(size, np.uint8) for size in sizes] for _ in ends[:2]]
        posted = [[end.post(buffer) for buffer in buffers]
                  for end, buffers in zip(ends, into, strict=False)]
        sent = [end.send(pattern(size, number))
                for number, size in enumerate(sizes) for end in ends[:2]]
        for request in (*sent, *posted[0], *posted[1]):
            request.wait(PATIENCE_S)
        for buffers in into:
            for number, size in enumerate(sizes):
                assert np.array_equal(buffers[number], pattern(size, number))
        assert all(end.info.counters["bad_payloads"] == 0 for end in ends[:2])


def test_long_messages_are_streamed_chunk_by_chunk():
    with engine("tcp") as a, engine("tcp") as b, b.listen(streamed=64) as listener, \
            Relay(listener.handle, 6) as relay:
        near = a.connect(relay.handle, timeout=PATIENCE_S)
        far = listener.accept(PATIENCE_S)
        for number, size in enumerate((100, RUN_BYTES + 9, 700_001)):
            sent = near.send(pattern(size, number))
            got = b"".join(bytes(chunk) for chunk in far.stream(PATIENCE_S))
            assert got == pattern(size, number).tobytes()
            sent.wait(PATIENCE_S)


def test_flows_that_are_cut_are_made_anew():
    with pair_by_relay(7) as (a, b, relay):
        first = a.paths[0].local
        carry(a, b, [300_000] * 8, lambda number: number % 2 and relay.cut())
        carry(b, a, [300_000] * 4, lambda number: number % 2 and relay.cut())
        assert a.info.counters["paths_died"] >= 1
        assert a.paths[0].local != first


@pytest.mark.parametrize("paths", [1, 3])
def test_messages_under_way_survive_a_cut(paths):
    with pair_by_relay(8, paths) as (a, b, relay):
        into = [np.zeros(2_000_000, np.uint8) for _ in range(8)]
        posted = [b.post(buffer) for buffer in into]
        sent = [a.send(pattern(2_000_000, number)) for number in range(8)]
        for number in range(8):
            relay.cut()
            assert posted[number].wait(PATIENCE_S) == 2_000_000
            sent[number].wait(PATIENCE_S)
        for number, buffer in enumerate(into):
            assert np.array_equal(buffer, pattern(2_000_000, number))


@pytest.mark.parametrize("checksum", ["on", "off", "auto"])
def test_a_checksum_finds_what_changed_between_the_cards(checksum):
    with pair_by_relay(9, checksum=checksum) as (a, b, relay):
        relay.flips = 3
        into = np.zeros(3_000_000, np.uint8)
        posted = b.post(into)
        sent = a.send(FLIPPED * 3_000_000)
        assert posted.wait(PATIENCE_S) == 3_000_000
        sent.wait(PATIENCE_S)
        assert relay.flips == 0
        # One path, and loopback offloads sums: auto needs no checksum.
        assert (into == ord(FLIPPED)).all() == (checksum == "on")
        assert bool(b.info.counters["bad_payloads"]) == (checksum == "on")


def test_several_paths_have_a_checksum():
    with pair_by_relay(10, 2) as (a, b, relay):
        relay.flips = 3
        into = np.zeros(3_000_000, np.uint8)
        posted = b.post(into)
        a.send(FLIPPED * 3_000_000).wait(PATIENCE_S)
        posted.wait(PATIENCE_S)
        assert relay.flips == 0
        assert (into == ord(FLIPPED)).all()


def test_strangers_neither_disturb_nor_stay():
    with pair("tcp") as (a, b):
        port = port_of(a.paths[0].remote)
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                      for _ in range(50)]
            loud = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            loud.sendall(os.urandom(100_000))
            loud.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionError):
                assert loud.recv(1) == b""
            like = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            like.sendall(bytes([3, 0]) + bytes(200))
            carry(a, b, [100_000] * 4)
            assert len(silent) == 50


def test_both_ends_hear_of_a_killed_process():
    listens = subprocess.Popen([sys.executable, "-c", OTHER_END], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    assert listens.stdout
    handle = harp.Handle(bytes.fromhex(listens.stdout.readline()))
    with engine("tcp") as own:
        near = own.connect(handle, timeout=PATIENCE_S)
        assert bytes(near.recv(timeout=PATIENCE_S)) == b"ready"
        began = time.monotonic()
        listens.kill()
        with pytest.raises(harp.PeerGone, match="no process at the other end has its port"):
            near.recv(timeout=PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2  # and not after dead_after
    listens.communicate()


OTHER_END = """
import harp, sys
with harp.Engine("tcp", address="127.0.0.1") as engine, engine.listen() as listener:
    print(listener.handle.to_bytes().hex(), flush=True)
    far = listener.accept()
    far.send(b"ready").wait()
    far.recv()
"""


def test_the_listening_end_hears_of_a_killed_process_too():
    with engine("tcp") as own, own.listen() as listener:
        code = ("import harp, sys; engine = harp.Engine('tcp', address='127.0.0.1'); "
                "near = engine.connect(bytes.fromhex(sys.argv[1])); near.send(b'ready').wait(); "
                "near.recv()")
        connects = subprocess.Popen([sys.executable, "-c", code,
                                     listener.handle.to_bytes().hex()])
        far = listener.accept(PATIENCE_S)
        assert bytes(far.recv(timeout=PATIENCE_S)) == b"ready"
        connects.kill()
        with pytest.raises(harp.PeerGone, match="no process at the other end has its port"):
            far.recv(timeout=PATIENCE_S / 2)
        connects.wait()


def test_a_stopped_process_is_noticed():
    other = subprocess.Popen([sys.executable, "-c", OTHER_END], stdout=subprocess.PIPE, text=True)
    assert other.stdout
    handle = harp.Handle(bytes.fromhex(other.stdout.readline()))
    with engine("tcp") as own:
        near = own.connect(handle, timeout=PATIENCE_S, dead_after=1.5)
        assert bytes(near.recv(timeout=PATIENCE_S)) == b"ready"
        other.send_signal(signal.SIGSTOP)
        with pytest.raises(harp.PeerGone, match="silent"):
            near.recv(timeout=PATIENCE_S)
    other.kill()
    other.communicate()


@needs_namespaces
def test_a_flow_that_the_network_swallows_is_healed_by_the_others():
    with veth_pair() as (a, b):
        with b.space.entered():
            far_engine = harp.Engine("tcp", address=b.ipv4, locals=2)
        with a.space.entered():
            near_engine = harp.Engine("tcp", address=a.ipv4, locals=2)
        with a.space.entered(), near_engine, far_engine, \
                far_engine.listen(paths=2) as listener:
            near = near_engine.connect(listener.handle, timeout=PATIENCE_S, paths=2)
            far = listener.accept(PATIENCE_S)
            carry(near, far, [3_000_000] * 3)
            assert min(path.state["sent"] for path in near.paths) > 0
            lost = near.paths[1].local
            with b.losing_port(port_of(lost)):
                while near.paths[1].state["alive"]:
                    carry(near, far, [3_000_000])
                carry(far, near, [3_000_000] * 3)
                assert near.info.counters["paths_died"] == 1
            assert near.paths[0].state["died"] == 0


@needs_namespaces
def test_both_ends_name_the_flow_that_the_network_swallows():
    with veth_pair() as (a, b):
        with b.space.entered():
            far_engine = harp.Engine("tcp", address=b.ipv4)
        with a.space.entered():
            near_engine = harp.Engine("tcp", address=a.ipv4)
        with a.space.entered(), near_engine, far_engine, \
                far_engine.listen(dead_after=1) as listener:
            near = near_engine.connect(listener.handle, timeout=PATIENCE_S, dead_after=1)
            far = listener.accept(PATIENCE_S)
            local, remote = near.paths[0].local, near.paths[0].remote
            with b.losing_port(port_of(local)):
                for end, way in ((near, f"from {local} to {remote}"),
                                 (far, f"from {remote} to {local}")):
                    with pytest.raises(harp.PeerGone, match=way):
                        end.recv(timeout=PATIENCE_S)


@needs_namespaces
def test_a_plan_chooses_the_source_ports():
    with veth_pair() as (a, b):
        with b.space.entered():
            far_engine = harp.Engine("tcp", address=f"{b.ipv4}:7000")
        with a.space.entered():
            near_engine = harp.Engine("tcp", address=a.ipv4)
        with a.space.entered(), near_engine, far_engine, \
                far_engine.listen(paths=2) as listener:
            flows = [(f"{a.ipv4}:{port}", f"{b.ipv4}:7000") for port in (61_300, 61_301)]
            ends = [(near_engine.connect(listener.handle, timeout=PATIENCE_S, paths=2,
                                         flows=flows), listener.accept(PATIENCE_S))
                    for _ in range(2)]
            for near, far in ends:
                carry(near, far, [1_000_000])
                assert [port_of(path.local) for path in near.paths] == [61_300, 61_301]
            used = a.space.run("ss", "-tnH", "state", "established")
            assert len(re.findall(r":6130[01]\b", used)) == 2


@needs_namespaces
def test_few_ephemeral_ports_are_enough_for_many_connections():
    space = Namespace()
    try:
        space.run("ip", "link", "set", "lo", "up")
        space.sysctl("ipv4.ip_local_port_range", "40000 40099")
        with space.entered():
            near_engine, far_engine = (engine("tcp", locals=17) for _ in range(2))
        with space.entered(), near_engine, far_engine, \
                far_engine.listen(paths=17) as listener:
            ends = [(near_engine.connect(listener.handle, timeout=PATIENCE_S, paths=17),
                     listener.accept(PATIENCE_S)) for _ in range(40)]
            for near, far in ends:
                carry(near, far, [200_000])
            with socket.create_server(("127.0.0.1", 0)) as others:
                assert others.getsockname()[1] >= 40_000
    finally:
        space.close()


def test_a_frame_longer_than_any_ends_its_flow_only():
    with pair("tcp") as (a, b):
        with socket.create_connection(("127.0.0.1", port_of(a.paths[0].remote))) as stranger:
            stranger.sendall(b"\x03\x03" + bytes(12) + b"\xff\xff" + bytes(28))
            stranger.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionError):
                assert stranger.recv(1) == b""
        carry(a, b, [10_000])


def event_polls(process):
    files = map(os.path.realpath, Path(f"/proc/{process}/fd").iterdir())
    return sum("eventpoll" in file for file in files)


def test_a_fork_keeps_no_flow_of_its_parent():
    others = event_polls("self")
    with pair("tcp") as (a, b):
        readable, writable = os.pipe()
        child = os.fork()
        if not child:
            os.write(writable, b"here")
            signal.pause()
        assert os.read(readable, 4) == b"here"
        carry(a, b, [200_000])
        polls = event_polls(child)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for end in (readable, writable):
            os.close(end)
        assert polls == others


def test_others_see_its_engine():
    with pair("tcp") as (a, b):
        carry(a, b, [100_000])
        seen = set()
        while not seen:  # rows are written now and then
            seen = {ip_of(path.remote) for one in engines((os.getpid(),)) for path in one.paths
                    if path.remote == a.paths[0].remote}
        assert seen == {"127.0.0.1"}
