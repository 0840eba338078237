"""Planned source ports: which port each path of a connection leaves by."""

from __future__ import annotations

import socket

import pytest

from harp.net import Engine, Port
from lab.namespace import why_unusable
from lab.veth import veth_pair
from tests.support.free_ports import free_ports

root_only = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


def own_ports(connection):
    return [int(path.local.rpartition(":")[2]) for path in connection.paths]


def connected(engine, **options):
    """Ports of a connection's paths, once it has carried a message."""
    listener = engine.listen(paths=options.get("paths", 1))
    target = listener.handle.addresses[0]
    flows = [(source, target) for source in options.pop("sources")]
    near = engine.connect(listener.handle, flows=flows, **options)
    far = listener.accept()
    sent = near.send(b"planned")
    assert bytes(far.recv()) == b"planned"
    sent.wait()
    return own_ports(near)


def test_paths_leave_by_the_planned_ports_in_turn():
    one, two = free_ports(2)
    with Engine("udp", address="127.0.0.1") as engine:
        sources = [f"127.0.0.1:{one}", f"127.0.0.1:{two}"]
        assert connected(engine, sources=sources, paths=3) == [one, two, one]
        assert connected(engine, sources=sources[1:], paths=1) == [two]


def test_a_plan_of_another_target_or_host_costs_the_plan_and_not_the_connection():
    one, two = free_ports(2)
    with Engine("udp", address="127.0.0.1") as engine:
        own = int(engine.listen().handle.addresses[0].rpartition(":")[2])
        sentence = f"not as planned: the plan has no flow from 127.0.0.1:{own} to 127.0.0.1:{own}"
        with pytest.warns(RuntimeWarning, match=sentence):
            assert connected(engine, sources=[f"127.0.0.2:{one}"]) == [own]
        listener = engine.listen()
        with pytest.warns(RuntimeWarning, match=sentence):
            near = engine.connect(listener.handle, flows=[(f"127.0.0.1:{one}",
                                                           f"127.0.0.1:{two}")])
        assert own_ports(near) == [own]


def test_a_taken_port_costs_the_plan_and_not_the_connection():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        taken, free = other.getsockname()[1], free_ports(1)[0]
        with Engine("udp", address="127.0.0.1") as engine:
            with pytest.warns(RuntimeWarning, match=f"127.0.0.1:{taken} cannot be had: .* in use"):
                ports = connected(engine, paths=2,
                                  sources=[f"127.0.0.1:{taken}", f"127.0.0.1:{free}"])
            assert ports[0] != taken
            assert ports[1] == free


def test_a_wrong_address_is_one_sentence():
    with Engine("udp", address="127.0.0.1") as engine:
        listener = engine.listen()
        with pytest.raises(ValueError, match=r"'10\.0\.0:1' of a planned flow is no address"):
            engine.connect(listener.handle, flows=[("10.0.0:1", "10.0.0.2:1")])


@root_only
def test_xdp_takes_planned_ports_as_well():
    with veth_pair() as (near, far):
        port = free_ports(1)[0]
        with far.space.entered():
            there = Engine(Port("udp", interface=far.device, address=far.ipv4))
        with near.space.entered():
            here = Engine(Port("xdp", interface=near.device, address=near.ipv4))
        with here, there, near.space.entered():
            listener = there.listen()
            target = listener.handle.addresses[0]
            connection = here.connect(listener.handle, flows=[(f"{near.ipv4}:{port}", target)])
            assert own_ports(connection) == [port]
            assert connection.paths[0].remote == target


def leave_in_time_wait(address, target):
    """Connect and close first: the kernel keeps these ports for a minute (RFC 9293). Tell ours."""
    host, _, port = target.rpartition(":")
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as HARP's own planned ones
        one.bind((address, 0))
        one.connect((host, int(port)))
        own = one.getsockname()[1]
        one.shutdown(socket.SHUT_WR)
        assert one.recv(1) == b""
    return own


@root_only
def test_a_tcp_port_that_the_kernel_keeps_costs_the_plan_and_not_the_connection():
    with veth_pair() as (near, far):
        near.space.run("sysctl", "-qw", "net.ipv4.tcp_timestamps=0")  # else they are given back
        with far.space.entered():
            there = Engine(Port("tcp", interface=far.device))
        with near.space.entered():
            here = Engine(Port("tcp", interface=near.device))
        with here, there, near.space.entered():
            listener = there.listen()
            target = listener.handle.addresses[0].removeprefix("tcp:")
            kept = leave_in_time_wait(near.ipv4, target)
            flows = [(f"{near.ipv4}:{kept}", target)]
            with pytest.warns(RuntimeWarning, match=f":{kept} to .*: Cannot assign"):
                connection = here.connect(listener.handle, flows=flows)
            assert own_ports(connection) != [kept]
            sent = connection.send(b"hashed")
            assert bytes(listener.accept().recv()) == b"hashed"
            sent.wait()
