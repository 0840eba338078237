"""Statistics of engines, read from shared memory."""

import os
import time

import harp
from harp.cli.stats_files import forget, snapshots
from tests.harp.net.pairs import PATIENCE_S, pair


def own(**options):
    return snapshots([os.getpid()], **options)


def open_ones():
    """Both engines, once their statistics, which are written at times, have an open connection."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        found = own()
        if [row["state"] for engine in found for row in engine.connections] == ["open"] * 2 \
                and all(engine.paths for engine in found):
            return found
        assert time.monotonic() < end_s, found


def test_a_snapshot_has_both_ends_of_a_connection():
    with pair() as (a, b):
        a.send(b"message")
        b.recv(timeout=PATIENCE_S)
        found = open_ones()
        assert len(found) == 2
        rows = {row["id"]: row for engine in found for row in engine.connections}
        assert set(rows) == {a.info.id, b.info.id}
        assert rows[a.info.id]["peer_id"] == b.info.id
        assert rows[b.info.id]["peer_id"] == a.info.id
        for engine in found:
            assert engine.alive
            assert engine.pid == os.getpid()
            assert [path["connection"] in rows for path in engine.paths] == [True]
            assert [len(own(events=count)[0].events) for count in (0, 1)] == [0, 1]


def test_engines_are_listed_oldest_first_and_gone_when_they_are_closed():
    with harp.Engine("mem", name="one"), harp.Engine("mem", name="other"):
        assert [engine.name for engine in own()] == ["one", "other"]
        assert not forget(own()[0])  # it is alive
        assert len(own()) == 2
    assert own() == []
    assert snapshots([1 << 22]) == []
