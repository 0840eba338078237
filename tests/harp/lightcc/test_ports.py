"""Choice of a rank's engine towards other hosts; collectives go over it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from harp.lightcc import ports
from harp.lightcc.group import Group
from harp.lightcc.store import MemoryStore
from harp.net import OpenError, nics
from lab.namespace import why_unusable
from lab.veth import veth_pair

PATIENCE_S = 60.0
MEGABYTE = np.arange(1 << 18, dtype=np.float32)

needs_root = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


@pytest.fixture
def opened(monkeypatch):
    """The kinds of ports that were tried, in turn."""
    kinds, to_open = [], ports._open_engine

    def note(port, *rest, **options):
        kinds.append(port.kind)
        return to_open(port, *rest, **options)
    monkeypatch.setattr(ports, "_open_engine", note)
    return kinds


@needs_root
@pytest.mark.parametrize(("port", "kinds"), [
    ("xdp", ["udp", "udp", "xdp", "xdp"]),  # messages need no queue of the card
    ("tcp", ["tcp"] * 4)])
def test_a_sum_goes_by_the_port_that_is_asked_for(monkeypatch, opened, port, kinds):
    monkeypatch.setenv("HARP_PORT", port)
    store, done = MemoryStore(), threading.Barrier(2)
    with veth_pair() as ends:
        def live(rank):
            monkeypatch.setenv("MASTER_ADDR", ends[0].ipv4)
            with ends[rank].space.entered():
                group = Group(rank, 2, store, PATIENCE_S)
                data = MEGABYTE.copy()
                group.allreduce(data.view(np.uint8), "float32").result(PATIENCE_S)
                done.wait(PATIENCE_S)
                group.close()
                return data
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(live, range(2)))
    for data in answers:
        np.testing.assert_array_equal(data, 2 * MEGABYTE)
    assert sorted(opened) == kinds


@needs_root
@pytest.mark.parametrize("has_driver", [False, True])
def test_auto_takes_udp_where_the_card_has_no_zero_copy(monkeypatch, tmp_path, opened, has_driver):
    """A veth end passes for a card here; its driver then refuses zero copy, and udp it is."""
    with veth_pair() as (a, _), a.space.entered():
        monkeypatch.setattr(nics, "SYS", tmp_path)
        if has_driver:
            (tmp_path / a.device / "device").mkdir(parents=True)
        with ports.open_network({"HARP_IFNAME": f"={a.device}"}, "test") as engine:
            assert engine.name == "test udp"
        assert opened == (["xdp", "udp"] if has_driver else ["udp"])


@needs_root
def test_the_interface_of_an_address_is_that_of_the_kernel():
    with veth_pair() as (a, _), a.space.entered():
        for address in (a.ipv4, a.ipv6, "127.0.0.1"):
            expected = "lo" if address == "127.0.0.1" else a.device
            assert nics.interface_of(address) == expected
        assert nics.interface_of("192.0.2.1") is None
        assert nics.interface_of("2001:db8::1") is None


def test_a_missing_interface_is_one_sentence():
    with pytest.raises(OpenError, match="there is no interface nosuch"):
        ports.open_network({"HARP_PORT": "xdp", "HARP_IFNAME": "nosuch"}, "test")
