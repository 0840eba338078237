"""The meetings of ranks that begin, that are left, and that are added."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from harp.lightcc.horovod import rejoin, world
from harp.lightcc.launch import Place
from harp.lightcc.store import StoreServer
from tests.harp.lightcc.horovod.horovod_jobs import answers, run
from tests.support import PATIENCE_S
from tests.support.levels import long

START = """
import os, sys
from harp.lightcc.horovod import rejoin, world
from harp.lightcc.launch import Place
rejoin.start()
print(world.current().rank, world.current().size, flush=True)
world.end()
"""
ALL_MET = "world.global_process_set.runtime.group.barrier().result()"
"""A rank that left before would be an error to one that still makes the group."""
DIES = {
    "by itself": "os._exit(7)",
    "by a setting that is wrong": "os.environ['HOROVOD_CYCLE_TIME'] = 'late'",
    "when members are known": "world.restart = lambda *_: os._exit(7)",
}
"""What rank 1 of three does in place of joining, or before it does."""


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
    monkeypatch.setattr(world, "_store", None)
    with StoreServer() as server:
        server.store.set(rejoin.members_key(3), json.dumps([0, 2]).encode())
        server.store.set(rejoin.members_key(4), json.dumps([2, 5, 0]).encode())
        place = rejoin._assigned_place({"HARP_STORE": server.variable("127.0.0.1"),
                                        rejoin.ELASTIC: "3"}, Place(5, 6))
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


def start_elastic(script, *options, **more):
    return subprocess.run(
        [sys.executable, "-m", "harp.cli.main", "run", *options, sys.executable, "-W", "ignore",
         "-c", script], text=True, capture_output=True, check=False, timeout=PATIENCE_S, **more)


@pytest.mark.parametrize("when", DIES)
def test_a_rank_that_dies_before_it_joins_leaves_a_smaller_world(when):
    script = START.replace("rejoin.start()", f"""
if os.environ["RANK"] == "1": {DIES[when]}
rejoin.start()""")
    done = start_elastic(script, "--min-np", "2", "-np", "3")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 0 2", "[2] 1 2"]
    assert "rank 1 on localhost ended with status" in done.stderr


@pytest.mark.parametrize("options", [(), ("--min-np", "3")], ids=["plain", "elastic"])
def test_ranks_that_leave_come_again_and_meet_by_keys_that_no_group_had(options):
    """As Horovod's own reset, which is shutdown and init; a meeting counts before it, too."""
    script = START.replace("world.end()", f"""
for come in (rejoin.meet_again, rejoin.start, rejoin.start):
    {ALL_MET}
    if come is rejoin.start:
        world.end()
    come()
    print(world.current().rank, world.current().size, flush=True)
world.end()""")
    done = start_elastic(script, *options, "-np", "3")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] {rank} 3" for rank in range(3) for _ in range(4)]


@pytest.mark.parametrize("options", [(), ("--min-np", "2")], ids=["plain", "elastic"])
def test_each_group_of_a_job_has_a_timeline_and_a_log_of_its_own(options, tmp_path, monkeypatch):
    """Rank 0 of a later one may be another process, on another host: it cannot go on in one."""
    monkeypatch.setenv("HOROVOD_TIMELINE", f"{tmp_path}/it.json")
    monkeypatch.setenv("HOROVOD_AUTOTUNE", "1")
    monkeypatch.setenv("HOROVOD_AUTOTUNE_LOG", f"{tmp_path}/log.csv")
    done = start_elastic(START.replace("world.end()", f"""
world.current().timeline.call([f"of {{world.current().size}}"], "allreduce")
{ALL_MET}
rejoin.meet_again()
{ALL_MET}
world.end()"""), *options, "-np", "2")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "it.2.json", "it.json", "log.2.csv", "log.csv"]
    assert "of 2" in (tmp_path / "it.json").read_text()
    assert "of 2" not in (tmp_path / "it.2.json").read_text()


@pytest.mark.parametrize("leaver", [0, 1])
def test_ranks_of_a_plain_job_meet_again_where_one_left_the_group_that_another_lost(leaver):
    """One that has the result of the last call may leave before the others have it."""
    script = START.replace("world.end()", f"""
if os.environ["RANK"] == "{leaver}":
    world.end()
    rejoin.start()
else:
    rejoin.meet_again()
{ALL_MET}
rejoin.meet_again()
print(world.current().rank, world.current().size, flush=True)
world.end()""")
    done = start_elastic(script, "-np", "3")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] {rank} 3" for rank in range(3) for _ in range(2)]


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_rank_that_begins_again_meets_once_more_where_no_group_could_be_made(leaver):
    """After ``shutdown`` a meeting fails for many reasons: another rank may still lose a group.

    One that has its connections already hears of it in its first call, as in `hvd.elastic.run`.
    """
    script = START.replace("world.end()", f"""
from harp.lightcc.failure import GroupError
from harp.lightcc.mover import Direct
from harp.net.errors import OpenError
link = Direct.link
def fail_once(*_):
    Direct.link = link
    raise OpenError(5, "no memory of that name")
{ALL_MET}
world.end()
if os.environ["RANK"] == "{leaver}":
    Direct.link = fail_once
rejoin.start()
while True:
    try:
        {ALL_MET}
        break
    except GroupError:
        rejoin.meet_again()
print(world.current().rank, world.current().size, flush=True)
world.end()""")
    done = start_elastic(script, "-np", "3")
    assert done.returncode == 0, done.stderr
    assert "no group could be made: no memory of that name" in done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] {rank} 3" for rank in range(3) for _ in range(2)]


@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_comes_no_more_to_a_plain_job_is_named_after_one_timeout(absent, monkeypatch):
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "2")
    script = START.replace("world.end()", f"""
import signal
if os.environ["RANK"] == "{absent}": signal.pause()
rejoin.meet_again()""")
    done = start_elastic(script, "-np", "2")
    assert done.returncode != 0
    assert f"rank {absent} did not come" in done.stderr
    assert "(HOROVOD_START_TIMEOUT)" in done.stderr
    assert "no group could be made" not in done.stderr  # the others would be waited for again


def test_a_rank_that_leaves_an_elastic_job_for_good_is_not_waited_for():
    script = START.replace("world.end()", """
world.end()
if os.environ["RANK"] == "1": sys.exit()
rejoin.start()
print(world.current().rank, world.current().size, flush=True)
world.end()""")
    done = start_elastic(script, "--min-np", "2", "-np", "3")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 0 2", "[0] 0 3", "[1] 1 3", "[2] 1 2",
                                                "[2] 2 3"]


def test_a_rank_that_lives_and_does_not_come_is_named(monkeypatch):
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "2")
    script = START.replace("rejoin.start()", """
import signal
if os.environ["RANK"] == "1": signal.pause()
rejoin.start()""")
    done = start_elastic(script, "--min-np", "2", "-np", "2")
    assert done.returncode != 0
    assert "rank 1 did not come to a new group within 2 s (HOROVOD_START_TIMEOUT)" in done.stderr
    assert "no group could be made" not in done.stderr  # a meeting that nobody held


def test_a_job_of_one_rank_grows(tmp_path):
    hosts, script = tmp_path / "hosts", tmp_path / "find"
    hosts.write_text("localhost:1\n")
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    done = start_elastic(START.replace("world.end()", f"""
open({str(hosts)!r}, "w").write("localhost:2")
while world.current().size < 2:
    if rejoin.hosts_have_changed():
        rejoin.meet_again()
print("grown to", world.current().size, flush=True)
world.end()"""), "--min-np", "1", "--host-discovery-script", str(script))
    assert done.returncode == 0, done.stderr
    assert [line for line in sorted(done.stdout.splitlines()) if "grown" in line] == [
        "[0] grown to 2", "[1] grown to 2"]
