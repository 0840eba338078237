"""The meeting of ranks that are left and ranks that are added."""

from __future__ import annotations

import json

from harp.lightcc.horovod import rejoin, world
from harp.lightcc.store import StoreServer
from tests.harp.lightcc.horovod.horovod_jobs import answers, run
from tests.support.levels import long


@long
def test_the_ranks_that_are_left_go_on_from_the_last_commit():
    ended = run(3, "elastic", options=["--min-np", "2"])
    one, other = answers(ended)
    assert "rank 1 on localhost ended with SIGKILL; 2 go on" in ended.stderr
    assert (one["number"], other["number"]) == (0, 2)
    assert (one["rank"], other["rank"]) == (0, 1)
    for same in ("size", "log", "resets", "weights", "epoch"):
        assert one[same] == other[same]
    assert one["resets"] == [2]
    # 96 samples are 8 steps of three ranks; the second epoch loses one after 5 of them.
    assert one["log"] == [3] * (8 + 5) + [2] * 5 + [2] * 12


@long
def test_ranks_come_and_go_with_the_slots_that_a_script_finds(tmp_path):
    hosts, script = tmp_path / "hosts", tmp_path / "find"
    hosts.write_text("localhost:2\n")
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    one, other = answers(run(2, "growing", HOSTS=str(hosts), options=[
        "--min-np", "1", "--max-np", "3", "--host-discovery-script", str(script)]))
    assert (one.pop("local"), other.pop("local")) == ([0, 2], [1, 2])
    assert one == other
    assert one["sizes"] == [2, 3, 2]
    assert one["steps"] == one["counted"]  # nothing was lost


@long
def test_a_group_that_is_lost_is_made_anew_by_the_same_processes(job):
    one, other = job(2, "elastic")
    assert one["resets"] == other["resets"] == [2]
    assert one["log"] == other["log"] == [2] * 36
    assert one["weights"] == other["weights"]


def test_a_process_that_is_added_comes_at_the_meeting_that_it_was_started_for(monkeypatch):
    """The launcher names those that meet; one that is late takes part in the next meeting."""
    monkeypatch.setattr(rejoin, "_meeting", 3)
    with StoreServer() as server:
        server.store.set(rejoin.members_key(3), json.dumps([0, 2]).encode())
        server.store.set(rejoin.members_key(4), json.dumps([2, 5, 0]).encode())
        place = rejoin._assigned_place(server.store, 5)
        assert (place.rank, place.size) == (1, 3)
        for meeting in (3, 4):
            assert server.store.find(rejoin.here_key(meeting)) == ["5"]
        server.shutdown()


def test_a_rank_sees_that_the_launcher_asks_for_the_next_meeting(monkeypatch):
    monkeypatch.setattr(rejoin, "_meeting", 3)
    monkeypatch.setattr(world, "_store", None)
    with StoreServer() as server:
        environment = {"RANK": "0", "WORLD_SIZE": "2",
                       "HARP_STORE": server.variable("127.0.0.1")}
        server.store.set(rejoin.changed_key(3), b"")
        assert not rejoin.hosts_have_changed(environment)
        server.store.set(rejoin.changed_key(4), b"")
        assert rejoin.hosts_have_changed(environment)
        server.shutdown()
