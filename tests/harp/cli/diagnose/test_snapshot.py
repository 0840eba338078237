"""A host's own snapshot: of its engines, in its network namespace."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from harp.cli import stats_files
from harp.cli.diagnose.snapshot import SnapshotError, engines, from_json
from harp.net import Engine, Port
from lab.namespace import why_unusable
from lab.veth import veth_pair
from tests.harp.cli.diagnose.faulty_job import invoke
from tests.support import PATIENCE_S


def test_a_snapshot_is_of_this_host(tmp_path):
    """A real job of this host: what one command writes, the other one reads."""
    place = Port("udp", address="127.0.0.1")
    with Engine(place) as near, Engine(place) as far:
        listener = far.listen()
        connection = near.connect(listener.handle, timeout=PATIENCE_S)
        peer = listener.accept(timeout=PATIENCE_S)
        file = tmp_path / "here.json"
        assert invoke("--snapshot", file, "--seconds", 0.5, "--name", "here").exit_code == 0
        assert (connection.closed, peer.closed) == (False, False)
    report = from_json(file.read_bytes())
    assert report.host == "here"
    assert file.stat().st_mode & 0o777 == 0o600
    rows = {row.connection: row for engine in report.moments[-1].engines for row in engine.paths}
    ends = {(row.local, row.remote) for row in rows.values() if "127.0.0.1" in row.local}
    assert any(pair[::-1] in ends for pair in ends)


def test_a_path_that_has_yet_to_find_its_way_says_nothing_of_namespaces(monkeypatch):
    place = Port("udp", address="127.0.0.1")
    with Engine(place) as near, Engine(place) as far:
        listener = far.listen()
        connection = near.connect(listener.handle, timeout=PATIENCE_S)
        found = [row for row in stats_files.snapshots([os.getpid()], 8) if row.paths]
        assert not connection.closed
    cut = [replace(row, paths=[path | {"local": ""} for path in row.paths]) for row in found]
    monkeypatch.setattr(stats_files, "snapshots", lambda *_: cut)
    assert {row.file for row in engines()} == {row.file for row in found}


def engines_seen_at(end):
    with end.space.entered():
        return {engine.file for engine in engines()}


def wait_for_paths(*engines):
    """Wait until the engines' statistics, which are written at times, have their paths."""
    files = {engine.stats_path.rpartition("/")[2] for engine in engines}
    end_s = time.monotonic() + PATIENCE_S
    while not files <= {each.file for each in stats_files.snapshots((os.getpid(),))
                        if any(path["local"] for path in each.paths)}:
        assert time.monotonic() < end_s


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_hosts_that_share_memory_report_their_own_engines():
    """As containers do that are given their host's /dev/shm, and networks of their own."""
    with veth_pair() as (near, far):
        with near.space.entered():
            place = Engine(Port("udp", address=near.ipv4))
        with far.space.entered():
            other = Engine(Port("udp", address=far.ipv4))
        with place, other:
            listener = other.listen()
            with near.space.entered():
                connection = place.connect(listener.handle, timeout=PATIENCE_S)
            peer = listener.accept(timeout=PATIENCE_S)
            wait_for_paths(place, other)
            with ThreadPoolExecutor() as pool:  # a process is where its first thread is
                seen = list(pool.map(engines_seen_at, (near, far)))
            assert (connection.closed, peer.closed) == (False, False)
            own = [engine.stats_path.rpartition("/")[2] for engine in (place, other)]
    assert [set(own) & each for each in seen] == [{own[0]}, {own[1]}]


@pytest.mark.parametrize("text", ["", "null", "[]", '{"format": "harp-snapshot-1"}', "\x00",
                                  '{"format": "harp-snapshot-1", "host": "", "moments": []}'])
def test_a_file_that_is_no_report_is_one_sentence(text):
    with pytest.raises(SnapshotError, match="it is no snapshot of format harp-snapshot-1") as info:
        from_json(text)
    assert "\n" not in str(info.value)
