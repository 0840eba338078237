"""Messages between ranks of a host go straight through memory, or through the network."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import numpy as np
import pytest

from harp._cnet import ffi, lib
from harp.lightcc.elements import combination
from harp.lightcc.failure import GroupError
from harp.lightcc.mover import Direct, Mover
from harp.lightcc.peers import Peers
from harp.lightcc.pieces import PIECE_BYTES, PLACE, REDUCE, SEND, address, cut, table
from harp.lightcc.program import Program
from harp.lightcc.store import StoreServer
from lab.c_programs import RACES, SANITIZED, build, library, run
from tests.harp.lightcc.test_group import (
    PATIENCE_S,
    MemoryStore,
    failures,
    group_of,
    of_all,
    raw,
    vectors,
)
from tests.harp.lightcc.test_places import answers_of, processes
from tests.support.levels import each_once, long, long_except

ELEMENTS = 300_001
"""Length of a vector that gives each rank long pieces."""


@pytest.mark.parametrize(("flags", "arguments"), [
    (SANITIZED, []), pytest.param(RACES, ["threads"], marks=long)], ids=["asan", "tsan"])
def test_messages_between_ranks_of_a_host(tmp_path, flags, arguments):
    sources = ["tests/cnet/lightcc/test_direct.c", str(library(flags))]
    run(build(tmp_path / "direct", sources, flags), *arguments)


@pytest.mark.parametrize("ranks", long_except([1, 2, 3, 4, 5, 6, 7, 8], 1, 2, 5))
def test_small_broadcasts_need_no_network(ranks):
    with group_of(ranks) as group:
        before = sent(group)
        for root in range(ranks):
            for nbytes in (0, 1, 4095, 4096):
                data = [np.full(nbytes, 10 * root + rank, np.uint8) for rank in range(ranks)]
                of_all(rank.broadcast(own, root) for rank, own in zip(group, data, strict=True))
                assert all((own == 11 * root).all() for own in data)
        assert (sent(group) == before).all()


def sent_while_small(group):
    """Sum small vectors over all ranks, and give the packets that each sent to each by network."""
    before = sent(group)
    for elements in (1, 7, 1000, 0):
        data = vectors(len(group), elements)
        total = np.sum(data, axis=0)
        of_all(rank.allreduce(raw(own), "float32") for rank, own in zip(group, data, strict=True))
        of_all(rank.barrier() for rank in group)
        for own in data:
            np.testing.assert_array_equal(own, total)
    return sent(group) - before


def sent(group):
    """Packets of data from each rank to each, as a matrix."""
    return np.array([[rank._peers.pieces[peer].info.counters["data_sent"]
                      if peer != rank.rank else 0 for peer in range(len(group))]
                     for rank in group])


def sent_while_large(group):
    """The same with vectors that give each rank long pieces, and uneven messages."""
    before = sent(group)
    data = vectors(len(group), ELEMENTS)
    total = np.sum(data, axis=0)
    of_all(rank.allreduce(raw(own), "float32") for rank, own in zip(group, data, strict=True))
    for own in data:
        np.testing.assert_array_equal(own, total)
    for length in (0, 1, 32767, 32768, 32769, 262144, 262145, 600_001):
        exchange(group, length)
    return sent(group) - before


def exchange(group, length):
    """Have every rank send to every other one, to no two as much."""
    numbers = range(len(group))
    outs = [[np.full(length + rank + peer, 16 * rank + peer, np.uint8) for peer in numbers]
            for rank in numbers]
    ins = [[np.zeros(length + rank + peer, np.uint8) for peer in numbers] for rank in numbers]
    of_all(rank.exchange("a test", out, come)
           for rank, out, come in zip(group, outs, ins, strict=True))
    for rank in numbers:
        for peer in numbers:
            assert (ins[rank][peer] == 16 * peer + rank).all()


@pytest.mark.parametrize(("ranks", "sent_while"), each_once(
    [2, 3, 4, 5, 7], [sent_while_small, sent_while_large]))
def test_ranks_of_a_host_need_no_network(ranks, sent_while):
    with group_of(ranks) as group:
        assert not sent_while(group).any()


@pytest.mark.parametrize("sent_while", [sent_while_small, sent_while_large])
def test_a_rank_without_shared_memory_is_reached_through_the_network(monkeypatch, sent_while):
    opened, calls = Direct.open, iter(range(4))
    monkeypatch.setattr(Direct, "open",
                        lambda direct: "" if next(calls) == 1 else opened(direct))
    with group_of(4) as group:
        without, = [rank for rank in range(4) if group[rank]._peers.direct.c_direct == ffi.NULL]
        for source, target in np.argwhere(sent_while(group)):
            assert without in {source, target}
        assert sent(group)[without].any()


@pytest.mark.parametrize("sent_while", [sent_while_small, sent_while_large])
def test_faults_concern_ranks_of_a_host(monkeypatch, sent_while):
    monkeypatch.setenv("HARP_FAULTS", "drop=1%,seed=3")
    with group_of(2) as group:
        assert sent_while(group).sum() > 0


def test_lengths_that_differ_are_an_error():
    for lengths in [(100_000, 100), (100, 100_000), (100_000, 24), (100_000, 200_000)]:
        with group_of(2, timeout_s=5.0) as group:
            nothing = np.zeros(0, np.uint8)
            begun = [group[0].exchange("a test", [nothing, np.zeros(lengths[0], np.uint8)],
                                       [nothing] * 2),
                     group[1].exchange("a test", [nothing] * 2,
                                       [np.zeros(lengths[1], np.uint8), nothing])]
            first, second = failures(begun)
            assert "rank 0 sent" in second
            assert first in {second, "None"}  # what it sent was gone before it was looked at


def test_a_rank_that_is_gone_is_named_though_it_left_what_cannot_be_used():
    """Rank 1 has sent what rank 0 may reduce only when its own piece, for which the ring that
    nobody reads has no room, has left."""
    with two_movers() as (peers, movers):
        data = np.ones(16 * PIECE_BYTES, np.uint8)
        rows = list(cut(SEND, 1, data)) + list(cut(REDUCE, 1, data))
        run_pieces(movers[1], [*cut(SEND, 0, data[:PIECE_BYTES])])
        peers[1].close()
        with pytest.raises(GroupError, match="rank 1 is gone"):
            run_pieces(movers[0], rows)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_small_and_large_calls_and_barriers_do_not_agree(ranks):
    """Also where one has sent and received all before another comes."""
    with group_of(ranks) as group:
        of_all(rank.barrier() for rank in group)
        data = vectors(ranks, 300_001)
        begun = [group[0].allreduce(raw(data[0][:8]), "float32"), group[1].barrier(),
                 *[rank.allreduce(raw(own), "float32")
                   for rank, own in zip(group[2:], data[2:], strict=True)]]
        sentences = failures(begun)
        assert len(set(sentences)) == 1
        assert "call 2" in sentences[0]
        assert "ranks do not agree" in sentences[0]


def test_small_calls_come_after_large_ones_and_before_them():
    with group_of(4) as group:
        small, large = vectors(4, 3), vectors(4, 300_001, seed=1)
        totals = np.sum(small, axis=0), np.sum(large, axis=0)
        for _ in range(3):
            data = [[small[rank].copy(), large[rank].copy(), small[rank].copy()]
                    for rank in range(4)]
            of_all([rank.allreduce(raw(own), "float32")
                    for rank, calls in zip(group, data, strict=True) for own in calls])
            for calls in data:
                for own, turn in zip(calls, (0, 1, 0), strict=True):
                    np.testing.assert_array_equal(own, totals[turn])


@contextlib.contextmanager
def two_movers():
    """Two ranks' connections and movers, without a group."""
    store = MemoryStore()
    peers = [Peers(rank, 2, store, PATIENCE_S) for rank in range(2)]

    async def connect():
        await asyncio.gather(*(one.connect() for one in peers))
    asyncio.run(connect())
    yield peers, [Mover(one) for one in peers]
    for one in peers:
        one.close()


def run_pieces(mover, rows):
    """Move pieces that carry no description."""
    pieces = table(rows)
    work = ffi.new("struct harp_piece_work *", {"reduce": combination("uint8", "sum")})
    mover.run(ffi.from_buffer("struct harp_piece[]", pieces), len(rows), work,
              int(PATIENCE_S * 1e9))


def moves(mover, kind, peer, data):
    """Move a piece that is announced to or by a peer."""
    rows = table([(address(data), 0, len(data), 0, kind, peer, 0)])
    program = Program("a test", rows, 1 - peer, 2, inline_descriptor=True)
    mover.run(program.pieces, program.pieces_n, program.work, int(PATIENCE_S * 1e9))


def test_the_last_words_of_a_rank_that_left_are_received():
    heard = np.zeros(8, np.uint8)
    with two_movers() as (peers, movers):
        moves(movers[1], SEND, 0, np.arange(8, dtype=np.uint8))
        peers[1].close()
        while not peers[0].pieces[1].why():
            lib.harp_engine_drive(peers[0].engines[0].c_engine)
        moves(movers[0], PLACE, 1, heard)
        assert heard.tolist() == list(range(8))
        with pytest.raises(GroupError, match="rank 1 is gone"):
            moves(movers[0], PLACE, 1, heard)


def test_a_rank_that_is_killed_in_a_small_call_is_named():
    with StoreServer() as store:
        begun = processes(store, 3, "killed_small=1")
        answers = answers_of(begun)
    assert begun[1].returncode == -signal.SIGKILL
    assert ["rank 1 is gone" in answer["error"] for answer in answers] == [True, True]
