"""Collectives on host memory, against numpy on whole vectors; every rank is a thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from harp.collectives.tuning import Communicator, Row, Tuning
from harp.lightcc.group import Group, GroupError
from harp.lightcc.peers import Peers, check_ports
from harp.lightcc.pieces import PIECE_BYTES
from harp.lightcc.settings import LightSettings
from harp.lightcc.store import MemoryStore
from tests.support.levels import long_except

PATIENCE_S = 60.0
SIZES = [0, 1, 2, 7, 1000, 300_001]


@contextlib.contextmanager
def group_of(ranks, timeout_s=PATIENCE_S, settings=None):
    """Make a group; ``timeout_s`` is that of its calls, and not of the connections before them."""
    store, connect = MemoryStore(), Peers.connect

    async def connect_patiently(self):
        self._timeout_s = PATIENCE_S
        await connect(self)
        self._timeout_s = timeout_s
    with ThreadPoolExecutor(ranks) as pool:
        with patch.object(Peers, "connect", connect_patiently):
            made = list(pool.map(lambda rank: Group(rank, ranks, store, timeout_s, settings),
                                 range(ranks)))
        try:
            yield made
        finally:
            list(pool.map(Group.close, made))


@pytest.fixture(scope="module", params=[1, 2, 3, 5])
def group(request):
    with group_of(request.param) as made:
        yield made


def vectors(ranks, elements, dtype="<f4", seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(-50, 50, elements).astype(dtype) for _ in range(ranks)]


def of_all(futures):
    begun = list(futures)  # all, before one is awaited
    return [future.result(PATIENCE_S) for future in begun]


def raw(array):
    return array.view(np.uint8)


@pytest.mark.parametrize(("ranks", "pieces", "plan"), [
    (2, 300, "recursive-doubling"), (2, 600, "ring"), (2, 600, "halving-doubling"),
    (3, 300, "exchange")])
def test_what_is_sent_at_once_may_be_longer_than_what_is_open(monkeypatch, ranks, pieces, plan):
    """All ranks send each other more pieces than the mover opens: none waits for the others."""
    data = [np.full(pieces * PIECE_BYTES, rank + 1, np.uint8) for rank in range(ranks)]
    with group_of(ranks) as group:
        if plan == "exchange":
            came = [[np.zeros_like(one) for one in data] for _ in group]
            of_all(rank.exchange("a test", [own] * ranks, ins)
                   for rank, own, ins in zip(group, data, came, strict=True))
            assert all((ins[rank] == rank + 1).all() for ins in came for rank in range(ranks))
        else:
            for rank in group:
                monkeypatch.setattr(rank, "_choose_algorithm", lambda *_, **__: (plan, {}))
            of_all(rank.allreduce(own, "uint8") for rank, own in zip(group, data, strict=True))
            assert all((own == ranks * (ranks + 1) // 2).all() for own in data)


@pytest.mark.parametrize(("elements", "plan"), [(100, "tree"), (20_000, "ring")])
def test_the_table_of_sim_tune_chooses_by_size(monkeypatch, tmp_path, elements, plan):
    table = tmp_path / "tuning.json"
    rows = (Row("AllReduce", 0, 65536, "Tree", "LL"),
            Row("AllReduce", 65537, 1 << 30, "Ring", "Simple"))
    table.write_text(Tuning((Communicator(2, 1, rows),)).to_json())
    monkeypatch.setenv("HARP_TUNER", str(table))
    with group_of(2) as made:
        data = vectors(2, elements)
        total = np.sum(data, axis=0)
        of_all(rank.allreduce(raw(own), "float32") for rank, own in zip(made, data, strict=True))
        assert all((own == total).all() for own in data)
        with pytest.raises(GroupError, match=f"allreduce of {elements} float32, sum, by {plan}"):
            of_all(rank.allreduce(raw(own), kind) for rank, own, kind
                   in zip(made, data, ("float32", "int32"), strict=True))


@pytest.mark.parametrize("elements", SIZES)
def test_allreduce_is_the_sum_at_every_rank(group, elements):
    data = vectors(len(group), elements)
    total = np.sum(data, axis=0)
    of_all(rank.allreduce(raw(own), "float32") for rank, own in zip(group, data, strict=True))
    for own in data:
        np.testing.assert_array_equal(own, total)


@pytest.mark.parametrize("elements", SIZES)
def test_broadcast_is_the_roots_vector(group, elements):
    root = len(group) - 1
    data = vectors(len(group), elements)
    wanted = data[root].copy()
    of_all(rank.broadcast(raw(own), root) for rank, own in zip(group, data, strict=True))
    for own in data:
        np.testing.assert_array_equal(own, wanted)


@pytest.mark.parametrize("part", SIZES)
def test_allgather_is_the_concatenation(group, part):
    ranks = len(group)
    own = vectors(ranks, part)
    data = [np.zeros(part * ranks, "<f4") for _ in group]
    for rank in range(ranks):
        data[rank][rank * part:(rank + 1) * part] = own[rank]
    of_all(rank.allgather(raw(one)) for rank, one in zip(group, data, strict=True))
    for one in data:
        np.testing.assert_array_equal(one, np.concatenate(own))


@pytest.mark.parametrize("part", SIZES)
def test_reduce_scatter_leaves_each_rank_its_part_of_the_sum(group, part):
    data = vectors(len(group), part * len(group))
    total = np.sum(data, axis=0)
    of_all(rank.reduce_scatter(raw(own), "float32")
           for rank, own in zip(group, data, strict=True))
    for rank, own in enumerate(data):
        np.testing.assert_array_equal(own[rank * part:(rank + 1) * part],
                                      total[rank * part:(rank + 1) * part])


def test_an_exchange_of_uneven_parts_is_the_transpose(group):
    ranks = len(group)
    outs = [[np.full(1000 * to + rank, 10 * rank + to, np.uint8) for to in range(ranks)]
            for rank in range(ranks)]
    ins = [[np.zeros(1000 * rank + src, np.uint8) for src in range(ranks)]
           for rank in range(ranks)]
    for more in (0, 100):  # the second one is the same program, with what is there then
        for data in (one for own in outs for one in own):
            np.add(data, more, out=data, casting="unsafe")
        of_all(group[rank].exchange("all_to_all", outs[rank], ins[rank]) for rank in range(ranks))
        for rank in range(ranks):
            for src in range(ranks):
                assert (ins[rank][src] == 10 * src + rank + more).all()


def test_a_rank_must_give_itself_as_much_as_it_takes(group):
    outs = [np.zeros(1 + (i == group[0].rank), np.uint8) for i in range(len(group))]
    with pytest.raises(ValueError, match="a rank's part for itself has 2 B, and its place 1 B"):
        group[0].exchange("all_to_all", outs, [np.zeros(1, np.uint8)] * len(group))


def test_a_barrier_waits_for_the_last_rank(group):
    *early, last = group
    waiting = [rank.barrier() for rank in early]
    assert not any(one.done() for one in waiting)
    of_all([*waiting, last.barrier()])


def test_calls_are_carried_out_in_order_and_may_all_be_begun_at_once(group):
    data = [[np.full(100 * i, rank + i, "<i8") for i in range(20)] for rank in range(len(group))]
    begun = [rank.allreduce(raw(one), "int64")
             for rank, own in zip(group, data, strict=True) for one in own]
    of_all(begun)
    for own in data:
        for i, one in enumerate(own):
            assert (one == sum(rank + i for rank in range(len(group)))).all()


def test_a_waiting_call_comes_after_the_calls_before_it():
    with group_of(2) as group:
        first = group[0].barrier()
        with group[0].waiting():
            second = group[0].barrier()  # the first is not over: the group's thread has both
        assert not first.done()
        assert not second.done()
        of_all([group[1].barrier(), group[1].barrier(), first, second])


def test_signals_are_heard_while_a_thread_carries_out_its_call():
    with group_of(2) as group:
        others = []
        old = signal.signal(signal.SIGALRM, lambda *_: others.append(group[1].barrier()))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with group[0].waiting():
                group[0].barrier().result(PATIENCE_S)  # over when the signal's handler came
        finally:
            signal.signal(signal.SIGALRM, old)
        of_all(others)


def test_an_interrupt_is_the_error_of_all(monkeypatch):
    with group_of(2) as group:
        def interrupt(*_):
            raise KeyboardInterrupt
        monkeypatch.setattr(group[0]._mover, "run", interrupt)
        waiting = group[1].barrier()
        with pytest.raises(KeyboardInterrupt), group[0].waiting():
            group[0].barrier()
        assert failures([waiting]) == ["call 1, barrier: KeyboardInterrupt at rank 0"]


def test_two_levels_give_the_same_sum():
    settings = LightSettings.from_env({"LIGHT_2D_ALLREDUCE": 1, "LIGHT_INTRA_SIZE": 2})
    with group_of(4, settings=settings) as group:
        data = vectors(4, 10_001, "<i4")
        total = np.sum(data, axis=0)
        of_all(rank.allreduce(raw(own), "int32") for rank, own in zip(group, data, strict=True))
        for own in data:
            np.testing.assert_array_equal(own, total)


def test_udp_carries_the_same(monkeypatch):
    monkeypatch.setenv("HARP_PORT", "udp")
    with group_of(3) as group:
        data = vectors(3, 1_000_001)
        total = np.sum(data, axis=0)
        of_all(rank.allreduce(raw(own), "float32") for rank, own in zip(group, data, strict=True))
        for own in data:
            np.testing.assert_array_equal(own, total)


def test_two_groups_at_once_from_two_threads():
    with group_of(2) as one, group_of(2) as other, ThreadPoolExecutor(4) as pool:
        def work(rank, factor):
            data = np.full(200_000, factor, "<f4")
            for _ in range(5):
                rank.allreduce(raw(data), "float32").result(PATIENCE_S)
            return data
        done = [pool.submit(work, rank, factor)
                for group, factor in ((one, 1.0), (other, 3.0)) for rank in group]
        for future, factor in zip(done, (1.0, 1.0, 3.0, 3.0), strict=True):
            assert (future.result(PATIENCE_S) == 32 * factor).all()


# ---- Between two ranks ----


# ---- What goes wrong ----


def failures(futures):
    return [str(future.exception(PATIENCE_S)) for future in futures]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_do_not_agree_all_hear_the_same_sentence(ranks):
    with group_of(ranks) as group:
        said = failures([rank.allreduce(raw(np.zeros(8 + (i == 0), "<f4")), "float32")
                         for i, rank in enumerate(group)])
        assert len(set(said)) == 1
        assert "ranks do not agree: " in said[0]
        assert "rank 0 calls allreduce of 9 float32" in said[0]
        # A rank that is busy elsewhere is waited for half a second: two that differ are enough.
        assert re.search(r"ranks? [1-3]( and 3|, 2 and 3| and 2)? calls? allreduce of 8 float32",
                         said[0]), said[0]
        assert failures([rank.barrier() for rank in group]) == said  # and of every later call


def disagree_and_leave(ranks, odd):
    """Rank ``odd`` calls something else; whoever hears of it leaves at once."""
    store = MemoryStore()

    def live(rank):
        group = Group(rank, ranks, store, PATIENCE_S)
        call = group.allreduce(raw(np.zeros(8 + (rank == odd), "<f4")), "float32")
        said = str(call.exception(PATIENCE_S))
        group.close()
        return said
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(live, range(ranks)))


@pytest.mark.parametrize("ranks", long_except([2, 3, 4, 5], 2, 3))
def test_ranks_that_leave_as_soon_as_they_disagree_give_the_others_the_reason(ranks):
    for odd in range(ranks):
        said = disagree_and_leave(ranks, odd)
        assert len(set(said)) == 1
        assert "ranks do not agree: " in said[0]
        assert f"rank {odd} calls allreduce of 9 float32" in said[0]


@pytest.mark.parametrize("ranks", [3, 4])
def test_a_rank_that_calls_something_longer_fails_at_once(ranks):
    """Small calls begin at one partner after the other, long ones at all, whichever rank is odd."""
    for odd in range(ranks):
        with group_of(ranks) as group:
            said = failures([rank.allreduce(raw(np.zeros(100_000 if i == odd else 8, "<f4")),
                                            "float32") for i, rank in enumerate(group)])
            assert len(set(said)) == 1
            assert f"rank {odd} calls allreduce of 100000 float32, sum, by ring" in said[0]


SPARSE = LightSettings(topk=True, topk_threshold_bytes=0, topk_ratio=0.1)


@pytest.mark.parametrize(("odd", "says"), [
    (replace(SPARSE, topk_ratio=0.2), "by topk, ratio 0.2, values of 4 B"),
    (replace(SPARSE, topk_fp16=True), "by topk, ratio 0.1, values of 2 B"),
    (LightSettings(two_d=True, intra_size=3), "by 2d, groups of 3"),
    (LightSettings(bits=8, small_bytes=0), "in 8 bits")],
    ids=["ratio", "fp16", "2d", "bits"])
def test_a_rank_with_other_settings_is_named_at_once(odd, says):
    with group_of(3, settings=SPARSE) as group:
        group[1].settings = odd
        data = [np.ones(1000, "<f4") for _ in group]
        said = failures([rank.allreduce(raw(own), "float32", error=np.zeros(
            rank.error_bytes(own.nbytes, "float32"), np.uint8) if not rank.settings.two_d else None)
            for rank, own in zip(group, data, strict=True)])
        assert len(set(said)) == 1
        assert "ranks do not agree: " in said[0]
        assert f"rank 1 calls allreduce of 1000 float32, sum, {says}" in said[0]
        assert ("ranks 0 and 2 call allreduce of 1000 float32, sum, by topk, ratio 0.1, values of "
                "4 B") in said[0]


def test_a_rank_with_another_port_is_named_before_a_group_is_made():
    store = MemoryStore()

    def make(rank):
        peers = Peers(rank, 3, store, PATIENCE_S, {"HARP_PORT": "tcp" if rank == 1 else "auto"})
        with pytest.raises(ValueError, match="HARP_PORT") as caught:
            asyncio.run(peers.connect())
        peers.close()
        return str(caught.value)
    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(make, range(3)))
    assert len(set(said)) == 1
    assert said[0].startswith("ranks do not agree on HARP_PORT: it is auto at ranks 0 and 2, it is "
                              "tcp at rank 1")


@pytest.mark.parametrize(("ports", "hosts", "agree"), [
    (["auto", "auto"], "aa", True), (["udp", "xdp", "auto"], "abc", True),
    (["udp", "xdp"], "aa", True), (["auto", "udp"], "aa", False), (["auto", "udp"], "ab", True),
    (["tcp", "tcp"], "ab", True), (["tcp", "udp"], "ab", False), (["tcp", "auto"], "ab", False),
    (["mem", "auto"], "aa", True), (["mem", "mem"], "ab", False), (["mem", "tcp"], "aa", False)])
def test_ports_that_go_together(ports, hosts, agree):
    if agree:
        check_ports(ports, hosts)
    else:
        with pytest.raises(ValueError, match="HARP_PORT"):
            check_ports(ports, hosts)


@pytest.mark.parametrize("reduction", ["sum", "min", "max"])
@pytest.mark.parametrize("ranks", [3, 4])
def test_signs_of_zero_and_kinds_of_nan_are_those_of_all_ranks(ranks, reduction):
    odd = np.array([0.0, -0.0, np.nan, -np.nan], "<f4")
    cases = [np.roll(np.repeat(odd, 4), 4 * i) if i % 2 else np.tile(odd, 4) for i in range(ranks)]
    with group_of(ranks) as group:
        of_all(rank.allreduce(raw(own), "float32", reduction)
               for rank, own in zip(group, cases, strict=True))
    assert len({own.tobytes() for own in cases}) == 1


def test_another_order_of_calls_is_reported():
    with group_of(2) as group:
        begun = [group[0].allreduce(raw(np.zeros(8, "<f4")), "float32"), group[1].barrier()]
        assert all("rank 0 calls allreduce of 8 float32, sum, by recursive-doubling, rank 1 calls "
                   "barrier" in one for one in failures(begun))


def test_a_message_that_is_late_amid_its_pieces_fails_the_group_and_breaks_none_behind_it():
    with group_of(2, timeout_s=1.5) as group:
        channel, on = group[0]._p2p._channels[1], threading.Event()
        send, sent = channel.send, []

        async def send_slowly(piece):
            sent.append(len(piece))
            if len(sent) == 2:
                await asyncio.get_running_loop().run_in_executor(None, on.wait)
            await send(piece)
        channel.send = send_slowly
        receiving = group[1].receive(np.empty(8, np.uint8), 0, tag=7)
        late = group[0].send(np.zeros(3_000_000, np.uint8), 1, tag=3)
        with pytest.raises(GroupError, match="no message with tag 7 came from rank 0 to rank 1"):
            receiving.result(PATIENCE_S)
        with pytest.raises(GroupError, match="a message from rank 0 to rank 1 was not over") as why:
            late.result(PATIENCE_S)
        on.set()  # the rest of it leaves, and then the sentence
        assert failures([group[1].barrier()]) == [str(why.value)]
        assert sum(sent) > 3_000_000


def test_a_rank_that_does_not_come_is_named_after_the_timeout():
    with group_of(3, timeout_s=1.5) as group:
        said = failures([group[0].barrier(), group[1].barrier()])
        assert said == ["call 1, barrier: not over after 1.5 s, rank 2 did not come"] * 2


def test_a_rank_that_leaves_is_named():
    with group_of(3) as group:
        waiting = [rank.barrier() for rank in group[:2]]
        group[2].close()
        assert all("rank 2" in one for one in failures(waiting))


def test_ranks_that_came_much_later_than_the_first_have_come():
    with group_of(3, timeout_s=3.0) as group:
        first = group[0].barrier()
        time.sleep(1.5)  # the timeouts are of real time
        assert failures([first, group[1].barrier()]) == [
            "call 1, barrier: not over after 3 s, rank 2 did not come"] * 2


def test_an_abort_is_heard_though_the_rank_leaves_at_once():
    with group_of(3) as group:
        waiting = group[2].barrier()
        group[1].abort()
        group[1].close()
        assert failures([waiting]) == ["the group was aborted by rank 1"]


def test_an_abort_ends_what_all_have_begun():
    with group_of(3) as group:
        waiting = [rank.barrier() for rank in group[:2]]
        message = group[1].receive(raw(np.zeros(1)), 0)
        group[0].abort()
        assert {*failures([*waiting, message])} == {"the group was aborted by rank 0"}


@pytest.mark.parametrize(
    ("port", "sentence"), [("rdma", "HARP_PORT is 'rdma'; .* auto, udp, tcp, xdp, mem")])
def test_an_unknown_port_is_refused(monkeypatch, port, sentence):
    monkeypatch.setenv("HARP_PORT", port)
    with pytest.raises(ValueError, match=sentence):
        Group(0, 1, MemoryStore())


def test_a_child_of_fork_ends_without_the_group():
    with group_of(2) as group:
        child = os.fork()
        if not child:
            group[0].close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        of_all(rank.barrier() for rank in group)


@pytest.mark.parametrize("times", long_except([3, 60], 3))
def test_a_rank_may_leave_as_soon_as_it_is_done(times):
    """Others may still be at work on the last collective, but not with that rank."""
    for _ in range(times):
        store = MemoryStore()

        def live(rank, store=store):
            group = Group(rank, 4, store, PATIENCE_S)
            group.barrier().result(PATIENCE_S)
            group.close()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(live, range(4)))


def test_collectives_are_right_where_datagrams_are_lost_doubled_and_broken(monkeypatch):
    """Random calls of four ranks, many at once, over a network that does all of it."""
    monkeypatch.setenv("HARP_PORT", "udp")
    monkeypatch.setenv("HARP_FAULTS", "drop=2%,duplicate=1%,corrupt=1%,reorder=2%,seed=5")
    random = np.random.default_rng(5)
    with group_of(4) as made:
        for _ in range(15):
            sizes = random.integers(1, 200_000, 4)
            data = [vectors(4, size, seed=int(size)) for size in sizes]
            totals = [np.sum(one, axis=0) for one in data]
            of_all(group.allreduce(raw(one[rank]), "float32")
                   for rank, group in enumerate(made) for one in data)
            for one, total in zip(data, totals, strict=True):
                for own in one:
                    np.testing.assert_array_equal(own, total)
            root = int(random.integers(4))
            sent = [np.full(int(sizes[0]), rank, np.uint8) for rank in range(4)]
            of_all(group.broadcast(own, root) for group, own in zip(made, sent, strict=True))
            assert all((own == root).all() for own in sent)
