"""harp.Engine at the protocol's limits: datagrams that are too small, and how a session ends."""

from __future__ import annotations

import errno
import os

import pytest
from netns import usable, veth_pair

import harp

PATIENCE_S = 30


@pytest.mark.parametrize("mtu", [1, 100, 231])
def test_an_mtu_that_a_control_frame_does_not_fit(mtu):
    with pytest.raises(harp.OpenError, match=r"MTU of port udp leaves .* needs 204") as caught:
        harp.Engine("udp", address="127.0.0.1", mtu=mtu)
    assert caught.value.errno == errno.EMSGSIZE


def test_the_smallest_mtu_is_enough():
    message = os.urandom(3000)
    with harp.Engine("udp", address="127.0.0.1", mtu=232) as engine:
        listener = engine.listen()
        near = engine.connect(listener.handle, timeout=PATIENCE_S)
        sent = near.send(message)
        assert bytes(listener.accept(PATIENCE_S).recv(timeout=PATIENCE_S)) == message
        sent.wait(PATIENCE_S)


@pytest.mark.skipif(bool(usable()), reason=usable())
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


def test_the_last_events_are_dumped_when_a_session_ends_in_error(tmp_path):
    dump = tmp_path / "dump"
    with harp.Engine("mem", name="good", dump=str(dump)) as engine, engine.listen() as listener:
        near = engine.connect(listener.handle, timeout=PATIENCE_S)
        far = listener.accept(PATIENCE_S)
        near.send(b"hello")
        assert bytes(far.recv(timeout=PATIENCE_S)) == b"hello"
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
