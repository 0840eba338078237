"""harp.Engine at the protocol's limits: small datagrams, other versions, a connection's end."""

from __future__ import annotations

import errno
import os
import socket

import pytest

import harp
from harp.cli.stats_files import snapshots
from harp.wire import Harp, Parameters, Versions, holds, seal
from harp.wire_sums import End, key_accept, key_hello
from lab.namespace import why_unusable
from lab.veth import veth_pair

PATIENCE_S = 30


@pytest.mark.parametrize("mtu", [1, 100, 239])
def test_an_mtu_that_a_control_frame_does_not_fit(mtu):
    with pytest.raises(harp.OpenError, match=r"MTU of port udp leaves .* needs 212") as caught:
        harp.Engine("udp", address="127.0.0.1", mtu=mtu)
    assert caught.value.errno == errno.EMSGSIZE


def test_the_smallest_mtu_is_enough():
    message = os.urandom(3000)
    with harp.Engine("udp", address="127.0.0.1", mtu=240) as engine:
        listener = engine.listen()
        near = engine.connect(listener.handle, timeout=PATIENCE_S)
        sent = near.send(message)
        assert bytes(listener.accept(PATIENCE_S).recv(timeout=PATIENCE_S)) == message
        sent.wait(PATIENCE_S)


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
@pytest.mark.parametrize("port", ["udp", "xdp"])
def test_a_way_that_a_control_frame_does_not_fit(port):
    with veth_pair() as (a, b), a.space.entered():
        with pytest.raises(harp.OpenError, match=f"MTU of port {port} leaves 0 bytes"):
            harp.Engine(port, interface=a.device, address=a.ipv4, mtu=20)
        with b.space.entered():
            far = harp.Engine(port, interface=b.device, address=b.ipv4)
        with far, harp.Engine(port, interface=a.device, address=a.ipv4) as near:
            a.space.run("ip", "route", "add", f"{b.ipv4}/32", "dev", a.device, "mtu", "100")
            with pytest.raises(harp.OpenError, match="datagrams of 72 bytes"):
                near.start(far.listen().handle)


@pytest.fixture
def stranger():
    """Give a socket of somebody who speaks another version."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.settimeout(PATIENCE_S)
        yield stranger


def test_a_listener_refuses_another_version_and_its_log_names_both(stranger):
    name = "version-of-the-log"
    with harp.Engine("udp", address="127.0.0.1", name=name) as engine, engine.listen() as listening:
        handle = listening.handle
        listener = int.from_bytes(bytes(handle)[:8], "little")
        key = key_hello(handle.secret, listener)
        host, port = handle.addresses[0].split(":")
        first = Harp(version=7, type="FIRST", connection=listener) / Parameters(connection=99)
        stranger.sendto(seal(first, bytes(16)), (host, int(port)))  # a wrong tag: no answer
        stranger.sendto(seal(first, key), (host, int(port)))
        answer = stranger.recv(2048)
        assert len(answer) <= len(first)
        assert holds(answer, key)
        assert Harp(answer).connection == 99
        assert (Harp(answer)[Versions].lowest, Harp(answer)[Versions].highest) == (3, 3)
        said = [text for one in snapshots([os.getpid()]) if one.name == name
                for _, _, text in one.events]
        assert [text for text in said if "version" in text] == [
            "refused a connecting end of another version: it speaks 7, this end speaks 3"]


@pytest.fixture
def attempt(stranger):
    """Give a connection to a stranger, its first frame, whence, the secret, and more."""
    with harp.Engine("udp", address="127.0.0.1") as engine, engine.listen() as listening:
        handle = bytearray(bytes(listening.handle))
        at = handle.index(bytes.fromhex("ffff7f000001")) - 12
        handle[at:at + 2] = stranger.getsockname()[1].to_bytes(2, "little")
        connection = engine.start(bytes(handle))
        first, sender = stranger.recvfrom(2048)
        secret, listener = listening.handle.secret, int.from_bytes(handle[:8], "little")
        assert holds(first, key_hello(secret, listener))
        yield connection, Harp(first)[Parameters], sender, secret, listener


def test_a_listener_of_another_version_is_an_error_that_names_both(stranger, attempt):
    connection, first, sender, secret, listener = attempt
    answer = Harp(version=4, type="VERSION", connection=first.connection)
    stranger.sendto(seal(answer / Versions(lowest=4, highest=5), key_hello(secret, listener)),
                    sender)
    with pytest.raises(harp.Broken, match="it speaks 4 to 5, this end speaks 3"):
        connection.connected.wait(PATIENCE_S)


def test_an_accept_without_a_connection_id_is_dropped(stranger, attempt):
    connection, first, sender, secret, listener = attempt
    key = key_accept(secret, listener, End(first.connection, first.epoch, first.nonce))
    accept = Harp(type="ACCEPT", connection=first.connection, epoch=first.epoch)
    stranger.sendto(seal(accept / Parameters(connection=0), key), sender)
    assert Harp(stranger.recv(2048)).type == 1  # FIRST again: nothing was accepted
    stranger.sendto(seal(accept / Parameters(connection=5), key), sender)
    connection.connected.wait(PATIENCE_S)


def test_the_last_events_are_dumped_when_a_connection_ends_in_error(tmp_path):
    dump = tmp_path / "dump"
    with harp.Engine("mem", name="good", dump=str(dump)) as engine, engine.listen() as listener:
        near = engine.connect(listener.handle, timeout=PATIENCE_S)
        far = listener.accept(PATIENCE_S)
        sent = near.send(b"hello")
        assert bytes(far.recv(timeout=PATIENCE_S)) == b"hello"
        sent.wait(PATIENCE_S)
        near.close()
        with pytest.raises(harp.Closed):
            far.recv(timeout=PATIENCE_S)
        assert not dump.exists()
        near = engine.connect(listener.handle, timeout=PATIENCE_S)
        far = listener.accept(PATIENCE_S)
        posted = far.post(bytearray(3))
        near.send(b"hello")
        with pytest.raises(harp.Broken, match="longer than the buffer"):
            posted.wait(PATIENCE_S)
    said = dump.read_text()
    assert said.startswith(f"engine good of process {os.getpid()}:\n")
    assert "is over: reason 2, by peer: 0" in said
