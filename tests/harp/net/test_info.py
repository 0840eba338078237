"""Information about a connection and its paths."""

import numpy as np
import pytest

from harp._cnet import ffi
from harp.net.info import fields
from tests.harp.net.pairs import PATIENCE_S, engine, pair, pattern


@pytest.mark.parametrize("port", ["udp", "tcp"])
def test_several_paths_carry_a_connection_and_can_be_looked_at(port):
    with engine(port, locals=4) as a, engine(port, locals=4) as b:
        listener = b.listen(paths=4)
        one = a.connect(listener.handle, timeout=PATIENCE_S, paths=4)
        other = listener.accept(PATIENCE_S)
        into = np.zeros(1_000_000, np.uint8)
        other.post(into)
        one.send(pattern(1_000_000)).wait(PATIENCE_S)
        assert len(one.paths) == one.info.paths == 4
        assert len({path.local for path in one.paths}) == 4
        assert one.info.counters["data_sent"] > 0
        assert other.info.counters["placed"] > 0
        assert one.info.segment == one.segment > 1000
        assert one.info.peer.removeprefix("tcp:").startswith("127.0.0.1:")


def test_a_connection_counts_what_it_has_sent():
    with pair() as (a, b):
        before = a.info
        for _ in range(3):
            a.send(bytes(1000))
            b.recv(timeout=PATIENCE_S)
        assert (before.paths, before.segment > 0) == (1, True)
        assert a.info.counters.keys() == before.counters.keys() == {
            name for name, _ in ffi.typeof("struct harp_session_counters").fields}
        assert any(a.info.counters[name] > before.counters[name] for name in before.counters)


def test_a_struct_of_c_becomes_its_numbers_by_name():
    struct = ffi.new("struct harp_path_info *")
    names = [name for name, _ in ffi.typeof("struct harp_path_info").fields]
    for value, name in enumerate(names):
        setattr(struct, name, value % 2)
    assert fields(struct[0]) == {name: value % 2 for value, name in enumerate(names)}
