"""Ranks of a host read each other's long pieces where they lie, or have them sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import netns
import numpy as np
import pytest
from test_lightcc_group import (
    PATIENCE_S,
    MemoryStore,
    failures,
    group_of,
    of_all,
    raw,
    vectors,
)

from harp._cnet import ffi, lib
from harp.lightcc.mover import Mover
from harp.lightcc.peers import GroupError, Peers
from harp.lightcc.pieces import PIECE_BYTES, PLACE, SEND, address, cut, table
from harp.lightcc.shared import SharedMemory
from harp.lightcc.store import StoreServer

ELEMENTS = 300_001
"""Of a vector of which each rank has long pieces."""
RANK = Path(__file__).resolve().parent / "lightcc_shared_rank.py"


def allreduced(group):
    """Sum a vector over all ranks, and give the packets that their pieces took."""
    data = vectors(len(group), ELEMENTS)
    total = np.sum(data, axis=0)
    of_all(rank.allreduce(raw(own), "float32") for rank, own in zip(group, data, strict=True))
    for own in data:
        np.testing.assert_array_equal(own, total)
    return sum(connection.info.counters["data_sent"] for rank in group
               for connection in rank._peers.pieces.values())


def test_a_rank_that_sees_the_others_memory_is_sent_no_long_pieces(monkeypatch):
    with group_of(3) as group:
        assert [rank._peers.shared.reads for rank in group] == [{1, 2}, {0, 2}, {0, 1}]
        offered = allreduced(group)
    monkeypatch.setenv("HARP_SINGLE_COPY", "0")
    with group_of(3) as group:
        assert [rank._peers.shared.reads for rank in group] == [set()] * 3
        assert allreduced(group) > 2 * offered


def test_whoever_does_not_read_is_sent_what_others_read(monkeypatch):
    look = SharedMemory.look
    monkeypatch.setattr(SharedMemory, "look", lambda memory, rank, shown: look(
        memory, rank, elsewhere(shown) if rank == 1 else shown))
    with group_of(3) as group:
        assert [rank._peers.shared.reads for rank in group] == [{2}, {0, 2}, {0}]
        allreduced(group)


def elsewhere(shown):
    """Show a place at which the word is not, as in another process."""
    return shown._replace(word_at=0)


def test_uneven_messages_of_all_lengths_are_read_or_sent():
    lengths = [0, 1, 24, 32767, 32768, 32769, 262144, 262145, 600_001]
    with group_of(3) as group:
        for length in lengths:
            outs = [[np.full(length + rank + peer, 16 * rank + peer, np.uint8)
                     for peer in range(3)] for rank in range(3)]
            ins = [[np.zeros(length + rank + peer, np.uint8) for peer in range(3)]
                   for rank in range(3)]
            of_all(rank.exchange("a test", out, come)
                   for rank, out, come in zip(group, outs, ins, strict=True))
            for rank in range(3):
                for peer in range(3):
                    assert (ins[rank][peer] == 16 * peer + rank).all()


def test_lengths_that_differ_are_an_error():
    """One offers what the other expects as a message, and the other way round."""
    for lengths in [(100_000, 100), (100, 100_000), (100_000, 24), (100_000, 200_000)]:
        with group_of(2, timeout_s=5.0) as group:
            begun = [rank.exchange("a test", outs, ins) for rank, outs, ins in [
                (group[0], [np.zeros(0, np.uint8), np.zeros(lengths[0], np.uint8)],
                 [np.zeros(0, np.uint8)] * 2),
                (group[1], [np.zeros(0, np.uint8)] * 2,
                 [np.zeros(lengths[1], np.uint8), np.zeros(0, np.uint8)])]]
            first, second = failures(begun)
            assert "rank 0 sent" in second
            assert first == second or lengths[0] == 100  # which had left before it was looked at


def test_what_was_withdrawn_is_not_taken():
    """Rank 0 gives its memory back before rank 1 has heard why: rank 1 must not take it."""
    with group_of(2, timeout_s=2.0) as group:
        data = vectors(2, ELEMENTS)
        group[0]._peers.shared.word[0] = 0
        failures([rank.allreduce(raw(own), "float32")
                  for rank, own in zip(group, data, strict=True)])


def test_memory_is_read_with_the_word_that_its_owner_shows():
    word, there, here = ffi.new("uint64_t *", 7), np.arange(1000), np.zeros(1000, np.int64)
    shown = {"process": os.getpid(), "word_at": int(ffi.cast("uintptr_t", word)), "word": 7}

    def read(at=None, **other):
        at = address(raw(there)) if at is None else at
        peer = ffi.new("struct harp_peer_memory *", shown | other)
        return lib.harp_peer_memory_read(peer, ffi.cast("void *", address(raw(here))), at, 8000)

    assert read() == lib.HARP_PEER_READ
    np.testing.assert_array_equal(here, there)
    assert read(at=0) == lib.HARP_PEER_UNREADABLE
    assert read(word_at=0) == lib.HARP_PEER_WITHDRAWN
    word[0] = 0
    assert read() == lib.HARP_PEER_WITHDRAWN
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert read(process=gone.pid) == lib.HARP_PEER_WITHDRAWN


@contextlib.contextmanager
def without_answers():
    """Two ranks, of which the second has heard that their connection for answers has ended."""
    store = MemoryStore()
    peers = [Peers(rank, 2, store, PATIENCE_S) for rank in range(2)]

    async def connect():
        await asyncio.gather(*(one.connect() for one in peers))
    asyncio.run(connect())
    peers[0].shared.answers.pop(1).close()
    while not peers[1].shared.answers[0].why():
        for one in peers:
            lib.harp_engine_drive(one.engines[0].c_engine)
    yield peers
    for one in peers:
        one.close()


def moves(mover, kind, data):
    """Move pieces to or from the first rank."""
    rows = table(list(cut(kind, 0, data)))
    mover.run(ffi.from_buffer("struct harp_piece[]", rows), len(rows),
              ffi.new("struct harp_piece_work *"), int(PATIENCE_S * 1e9))


def test_what_cannot_be_answered_any_more_is_an_error_at_once():
    there, here = np.ones(ELEMENTS, np.uint8), np.zeros(ELEMENTS, np.uint8)
    with without_answers() as peers:
        offer = struct.pack("<QQII", peers[1].shared.word[0], address(there), PIECE_BYTES, 0)
        peers[0].pieces[1].send(offer)
        with pytest.raises(GroupError, match="rank 0 is gone"):
            moves(Mover(peers[1]), PLACE, here)


def test_a_piece_whose_answer_cannot_come_any_more_is_an_error_at_once():
    with without_answers() as peers:
        mover = Mover(peers[1])
        moves(mover, SEND, np.zeros(0, np.uint8))  # a look that finds it
        with pytest.raises(GroupError, match="rank 0 is gone"):
            moves(mover, SEND, np.zeros(ELEMENTS, np.uint8))


def test_memory_that_nobody_may_read_is_an_error_that_names_its_rank():
    with group_of(2) as group:
        nothing = np.zeros(0, np.uint8)
        own = np.frombuffer(mmap.mmap(-1, ELEMENTS, prot=0), np.uint8)
        first, second = failures([
            group[0].exchange("a test", [nothing, own], [nothing] * 2),
            group[1].exchange("a test", [nothing] * 2, [np.zeros(ELEMENTS, np.uint8), nothing])])
        assert first == second
        assert "from the memory of rank 0" in first


def processes(store, ranks, *words, apart=None):
    """Start ranks, one of them in a process space of its own."""
    space = ["unshare", "--pid", "--fork"]
    return [subprocess.Popen([*(space if rank == apart else ()), sys.executable, RANK,
                              store.variable("127.0.0.1"), str(rank), str(ranks), *words],
                             stdout=subprocess.PIPE, text=True) for rank in range(ranks)]


def test_ranks_whose_memory_the_kernel_keeps_from_others_have_it_sent():
    """As a process that has changed its user, rank 1 is not dumpable: others may not read it."""
    with StoreServer() as store:
        begun = processes(store, 3, "private=1")
        answers = [json.loads(one.communicate(timeout=PATIENCE_S)[0]) for one in begun]
    assert [answer["reads"] for answer in answers] == [[2], [0, 2], [0]]
    assert all(answer["right"] for answer in answers)


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_ranks_of_different_users_talk_as_those_of_different_hosts_do():
    """They may neither open each other's shared memory nor read each other's processes."""
    with StoreServer() as store:
        begun = processes(store, 3, "user=1")
        answers = [json.loads(one.communicate(timeout=PATIENCE_S)[0]) for one in begun]
    assert [answer["reads"] for answer in answers] == [[2], [], [0]]
    assert all(answer["right"] for answer in answers)


@pytest.mark.skipif(bool(netns.usable()), reason=str(netns.usable()))
def test_a_place_is_a_network_and_process_space_of_a_host_whatever_its_name():
    """A rank in another one has a number there that is another process' here."""
    ask = [sys.executable, "-c", "from harp.lightcc.peers import memory_place as own; print(own())"]
    here, again, *others = [
        subprocess.run([*before, *ask], capture_output=True, text=True, check=True).stdout
        for before in ([], [], ["unshare", "--net"], ["unshare", "--pid", "--fork"])]
    assert here == again
    assert len({here, *others}) == 3
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]
    assert subprocess.run([*renamed, *ask], capture_output=True, text=True,
                          check=True).stdout == here


@pytest.mark.skipif(bool(netns.usable()), reason=str(netns.usable()))
def test_a_rank_in_a_process_space_of_its_own_has_its_pieces_sent():
    with StoreServer() as store:
        begun = processes(store, 3, "private=-1", apart=1)
        answers = [json.loads(one.communicate(timeout=PATIENCE_S)[0]) for one in begun]
    assert [answer["reads"] for answer in answers] == [[2], [], [0]]
    assert all(answer["right"] for answer in answers)


def test_a_rank_that_is_killed_while_others_read_it_is_named():
    with StoreServer() as store:
        begun = processes(store, 3, "killed=1")
        answers = [json.loads(begun[rank].communicate(timeout=PATIENCE_S)[0]) for rank in (0, 2)]
    begun[1].communicate(timeout=PATIENCE_S)
    assert begun[1].returncode == -signal.SIGKILL
    assert all("rank 1 is gone" in answer["error"] for answer in answers)
