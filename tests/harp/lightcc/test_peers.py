"""Ranks that make a group: who does not come, dies, or belongs to another job, is named."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading

import pytest

from harp.lightcc.failure import GroupError
from harp.lightcc.peers import FAILED_KEY, Peers, look_s, telling_others
from harp.lightcc.store import MemoryStore, StoreServer
from tests.support import PATIENCE_S
from tests.support.levels import long_except

MAKE = """
import os
from harp.lightcc.group import Group
from harp.lightcc.store import StoreClient
try:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    Group(rank, ranks, StoreClient(os.environ["HARP_STORE"], 600.0), 600.0).close()
except Exception as error:
    print(error)
"""
MISSING = "a group of 3 ranks still waits for rank 2; each of its ranks must make it, in the same "


async def connect_all(*peers):
    return await asyncio.gather(*(each.connect() for each in peers), return_exceptions=True)


async def connect_all_by(store, *peers):
    async def connect(each):
        with telling_others(each.rank, each.ranks, store):
            await each.connect()
    return await asyncio.gather(*(connect(each) for each in peers), return_exceptions=True)


def test_a_missing_rank_is_named_long_before_the_timeout(caplog):
    store = MemoryStore()
    both = [Peers(rank, 3, store, 1.0, {}) for rank in range(2)]
    try:
        errors = asyncio.run(connect_all(*both))
    finally:
        store.set("place/2", b"null")  # so that no thread waits for it
        for each in both:
            each.close()
    assert [str(error) for error in errors] == [
        "the group was not made within 1 s: rank 2 did not come"] * 2
    assert all(isinstance(error, GroupError) for error in errors)
    assert [record.getMessage()[:len(MISSING)] for record in caplog.records] == [MISSING] * 2


def test_ranks_of_jobs_of_different_sizes_do_not_wait_for_the_rest():
    store = MemoryStore()
    both = [Peers(rank, ranks, store, 60.0, {}) for rank, ranks in ((0, 2), (1, 3))]
    try:
        errors = asyncio.run(connect_all(*both))
    finally:
        for each in both:
            each.close()
    assert [str(error) for error in errors] == [
        "ranks do not agree on how many they are: 2 at rank 0, 3 at rank 1",
        "ranks do not agree on how many they are: 3 at rank 1, 2 at rank 0"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_group_that_all_ranks_make_warns_of_nobody(ranks, caplog):
    store = MemoryStore()
    all_of_it = [Peers(rank, ranks, store, 30.0, {}) for rank in range(ranks)]
    try:
        assert asyncio.run(connect_all(*all_of_it)) == [None] * ranks
    finally:
        for each in all_of_it:
            each.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def start(rank, store, **variables):
    return subprocess.Popen([sys.executable, "-c", MAKE], text=True, stdout=subprocess.PIPE,
                            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3",
                                 "HARP_PORT": "udp", "HARP_STORE": store, **variables})


@pytest.mark.parametrize("failing", long_except(range(3), 1))
@pytest.mark.parametrize(("variable", "value", "sentence"), [
    ("HARP_IFNAME", "eth9", "there is no interface eth9 here; ip -br link lists them"),
    ("HARP_PORT", "roce", "HARP_PORT is 'roce'"),
    ("LIGHT_TOPK", "1", "unknown setting LIGHT_TOPK")])
def test_a_rank_that_cannot_make_the_group_says_why_to_all_others(
        failing, variable, value, sentence):
    with StoreServer() as server:
        ranks = [start(rank, server.variable("127.0.0.1"),
                       **({variable: value} if rank == failing else {})) for rank in range(3)]
        said = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
        server.shutdown()
    own = said.pop(failing).strip()
    assert own.startswith(sentence)
    assert said == [f"rank {failing}: {own}\n"] * 2


def test_a_rank_that_is_killed_while_the_group_is_made_is_named(monkeypatch):
    monkeypatch.setattr("harp.lightcc.peers.LOOK_S", 0.1)
    monkeypatch.setattr(Peers, "dead_s", 1.0)
    with StoreServer() as server:
        killed = start(2, server.variable("127.0.0.1"), WORLD_SIZE="4")
        server.store.get("place/2")  # it has come
        both = [Peers(rank, 4, server.store, 600.0, {}) for rank in range(2)]
        killed.kill()
        killed.communicate()
        try:
            errors = asyncio.run(connect_all_by(server.store, *both))
        finally:
            for rank in (2, 3):
                server.store.set(f"place/{rank}", b"null")  # so that no thread waits for it
            for each in both:
                each.close()
        server.shutdown()
    # Rank 3 has not come, and is not called dead.
    why = "rank 2 is gone: it came to make the group, and was silent for 1 s"
    assert [str(error) for error in errors] == [f"rank 1: {why}", why]


class Stopped(MemoryStore):
    """A store that stops to answer when a rank has come, as where rank 0's host lost its power."""

    def __init__(self):
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()

    def has(self, key):
        self.answers.wait()
        return super().has(key)

    def get(self, key):
        self.answers.wait()
        return super().get(key)

    def set(self, key, value):
        self.answers.wait()
        super().set(key, value)
        if key.startswith("place"):
            self.answers.clear()


def test_a_store_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr("harp.lightcc.peers.LOOK_S", 0.1)
    monkeypatch.setattr("harp.lightcc.peers.SAY_S", 0.1)
    monkeypatch.setattr(Peers, "dead_s", 1.0)
    store = Stopped()
    peers = Peers(1, 2, store, 600.0, {})
    try:
        error, = asyncio.run(connect_all_by(store, peers))
    finally:
        store.answers.set()
        store.set("place/0", b"null")  # so that no thread waits for it
        store.answers.set()
        peers.close()
    assert str(error) == ("the store has not answered for 1 s: rank 0 or the launcher, whichever "
                          "has it, is stopped, or its host is gone")


def test_two_processes_of_the_same_rank_say_so():
    with StoreServer() as server:
        ranks = [start(rank, server.variable("127.0.0.1")) for rank in (0, 1, 1)]
        said = [rank.communicate(timeout=PATIENCE_S)[0].strip() for rank in ranks]
        server.shutdown()
    found, = {sentence.removeprefix("rank 1: ") for sentence in said}
    what, both = found.split(": ")
    assert what == "two processes have rank 1"
    assert sorted(both.split(" and ")) == sorted(
        f"process {rank.pid} of {socket.gethostname()}" for rank in ranks[1:])


@pytest.mark.parametrize("said_by", [0, 1])
def test_rank_0_leaves_with_its_store_when_the_others_have_looked(said_by, monkeypatch):
    slept, store = [], MemoryStore()
    monkeypatch.setattr("harp.lightcc.peers.time.sleep", slept.append)
    if said_by:
        store.set(FAILED_KEY, b"rank 1: why")
    with pytest.raises(ValueError, match="why"), telling_others(0, 3, store):
        raise ValueError("why")
    assert sum(slept) > look_s(3)
    assert store.get(FAILED_KEY) == b"rank %d: why" % said_by


def test_an_error_without_a_message_reaches_others_by_its_name():
    store = MemoryStore()
    with pytest.raises(MemoryError), telling_others(1, 2, store):
        raise MemoryError
    assert store.get(FAILED_KEY) == b"rank 1: MemoryError()"
