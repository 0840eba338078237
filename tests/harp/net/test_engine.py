"""harp.Engine: connections in Python over each port, their errors, forks and threads."""

import doctest
import os
import time

import numpy as np
import pytest

import harp
import harp.net.engine
from lab.namespace import why_unusable
from lab.veth import veth_pair
from tests.harp.net.pairs import PATIENCE_S, engine, pattern
from tests.support import ROOT

# ---- Messages ----


def test_an_engine_that_is_driven_by_hand():
    with engine("mem", progress="manual") as only:
        listener = only.listen()
        near = only.start(listener.handle)
        far = listener.accept(PATIENCE_S)
        near.connected.wait(PATIENCE_S)
        near.send(b"by hand")
        assert bytes(far.recv(timeout=PATIENCE_S)) == b"by hand"
        while only.drive():
            pass


def test_an_engine_with_several_ports_and_one_with_faults():
    ports = [harp.Port("mem"),
             harp.Port("udp", address="127.0.0.1", mtu=1500, faults="drop=5%,seed=3")]
    with harp.Engine(ports) as both, engine("udp") as other:
        assert len(both.lines) == 3
        assert both.lines[2].startswith("chaos of seed 3 over udp: ")
        with both.listen() as listener:
            assert len(listener.handle.addresses) == 2
            near = other.connect(listener.handle, timeout=PATIENCE_S)
            far = listener.accept(PATIENCE_S)
        into = np.zeros(500_000, np.uint8)
        posted = near.post(into)
        far.send(pattern(500_000))
        posted.wait(PATIENCE_S)
        assert np.array_equal(into, pattern(500_000))
        assert far.info.counters["data_again"] > 0
    with pytest.raises(harp.OpenError, match='did you mean "drop"'):
        harp.Engine(harp.Port("mem", faults="drip=5%"))


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
@pytest.mark.parametrize("port", ["udp", "tcp", "xdp"])
def test_two_namespaces(port):
    with veth_pair() as (a, b):
        with b.space.entered():
            far_engine = harp.Engine(port, interface=b.device, address=b.ipv4)
        with a.space.entered():
            near_engine = harp.Engine(port, interface=a.device, address=a.ipv4)
            with near_engine, far_engine:
                listener = far_engine.listen()
                near = near_engine.connect(listener.handle, timeout=PATIENCE_S)
                far = listener.accept(PATIENCE_S)
                into = np.zeros(300_000, np.uint8)
                posted = far.post(into)
                near.send(pattern(300_000)).wait(PATIENCE_S)
                posted.wait(PATIENCE_S)
                assert np.array_equal(into, pattern(300_000))


# ---- Errors ----


def test_errors_say_what_is_allowed():
    with pytest.raises(ValueError, match="port is 'sctp'; there are udp, tcp, mem, xdp"):
        harp.Engine("sctp")
    with pytest.raises(ValueError, match="progress is 'magic'; there are thread, inline, manual"):
        engine(progress="magic")
    with pytest.raises(ValueError, match="'nowhere' is no address"):
        harp.Engine("udp", address="nowhere")
    with pytest.raises(ValueError, match="1 to 16 ports, not 0"):
        harp.Engine([])
    with pytest.raises(TypeError, match="set them in the Port"):
        harp.Engine(harp.Port("mem"), mtu=9000)
    with pytest.raises(harp.OpenError, match="frames") as caught:
        engine(frames=0)
    assert caught.value.errno == 22
    assert isinstance(caught.value, OSError)
    with pytest.raises(harp.OpenError, match=r"192\.0\.2\.1"):
        harp.Engine("udp", address="192.0.2.1")
    with pytest.raises(harp.OpenError, match='no fault "drip"; did you mean "drop"'):
        engine(faults="drip=1%")
    with engine() as a:
        with pytest.raises(ValueError, match="1 s at least"):
            a.listen(dead_after=0.5)
        with pytest.raises(ValueError, match="congestion is 'cubic'; there are swift, fixed"):
            a.listen(congestion="cubic")
        with pytest.raises(harp.OpenError, match="paths is 0: 1 to 64"):
            a.listen(paths=0)
        with pytest.raises(harp.OpenError, match="18000000000000000000: 1 s"):
            a.listen(dead_after=18e9)
        with pytest.raises(harp.OpenError, match="4294967295: at most 1048576"):
            a.listen(streamed=2**32 - 1, drafts=1)
        with pytest.raises(harp.OpenError, match="more than the 4096 frames"):
            a.listen(streamed=1, drafts=2**32 - 1)


# ---- Threads, signals, ends ----


def test_everything_closes_with_its_engine_and_twice_is_once():
    with engine() as a:
        listener = a.listen()
        near = a.connect(listener.handle, timeout=PATIENCE_S)
        far = listener.accept(PATIENCE_S)
        a.close()
        a.close()
        near.close()
        listener.close()
        for use in (a.listen, lambda: near.send(b""), lambda: far.info, listener.accept):
            with pytest.raises(harp.Closed):
                use()
        assert a.closed
        assert near.closed
        assert "closed" in repr(near)


def test_counters_are_removed_with_their_engine():
    one = engine()
    path = one.stats_path
    assert os.path.exists(path)  # noqa: PTH110
    one.close()
    assert not os.path.exists(path)  # noqa: PTH110


# ---- The manual ----


def test_the_manual_does_what_it_says():
    done = doctest.testfile(str(ROOT / "docs" / "use" / "python.md"), module_relative=False)
    assert done.failed == 0
    assert done.attempted > 20
    assert doctest.testmod(harp.net.engine).failed == 0


def test_a_slower_clock_makes_times_last_longer_outside():
    """Five milliseconds on the way, each way, by a clock that goes twenty times slower."""
    port = harp.Port("udp", address="127.0.0.1", faults="delay=5ms")
    with harp.Engine(port, slower=20) as engine:
        listener = engine.listen()
        began_s = time.monotonic()
        near = engine.connect(listener.handle)
        assert time.monotonic() - began_s >= 2 * 20 * 5e-3
        near.send(b"x").wait()
        assert 10e6 <= near.paths[0].state["least_ns"] < 100e6
