"""Calls that are under way at once: in order, apart, and failed by the right sentence."""

from __future__ import annotations

import numpy as np
import pytest

from harp._cnet import ffi
from harp.lightcc.elements import combination
from harp.lightcc.pieces import PLACE, SEND, cut, table
from tests.harp.lightcc.test_group import PATIENCE_S, failures, group_of, of_all, raw, vectors
from tests.harp.lightcc.test_mover_direct import two_movers


def add(mover, kind, data):
    """Add pieces to or from the other one of two ranks; gives what must stay."""
    peer = 1 - mover.rank
    pieces = table(list(cut(kind, peer, data)))
    work = ffi.new("struct harp_piece_work *", {"reduce": combination("uint8", "sum")})
    held = ffi.from_buffer("struct harp_piece[]", pieces)
    mover.mover.add(held, len(pieces), work, int(PATIENCE_S * 1e9))
    return pieces, held, work


class Side:
    """A rank's mover."""

    def __init__(self, rank, mover):
        self.rank, self.mover = rank, mover


@pytest.mark.parametrize("port", ["auto", "udp"])
def test_a_run_begins_while_the_one_before_it_waits(monkeypatch, port):
    monkeypatch.setenv("HARP_PORT", port)
    first, second, came = (np.full(100_000, value, np.uint8) for value in (1, 2, 0))
    with two_movers() as (_, movers):
        here, there = (Side(rank, mover) for rank, mover in enumerate(movers))
        held = [add(here, PLACE, first), add(here, SEND, second), add(there, PLACE, came)]
        while not there.mover.go_on():  # takes what the second run sends
            assert not here.mover.go_on()
        assert (came == 2).all()
        held.append(add(there, SEND, came))
        left = {here: 2, there: 1}
        while any(left.values()):
            for side, runs in left.items():
                left[side] -= runs > 0 and side.mover.go_on()
        assert (first == 2).all()
        del held  # until then the movers needed it


@pytest.mark.parametrize("port", ["auto", "udp"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_many_calls_at_once_give_what_they_give_alone(monkeypatch, ranks, port):
    monkeypatch.setenv("HARP_PORT", port)
    sizes = [1, 300_001, 5000, 0, 1_000_000, 17, 70_000, 262_144, 3]
    with group_of(ranks) as group:
        data = [vectors(ranks, size, seed=size) for size in sizes]
        totals = [np.sum(one, axis=0) for one in data]
        begun = []
        for one in data:
            begun += [rank.allreduce(raw(own), "float32")
                      for rank, own in zip(group, one, strict=True)]
            begun += [rank.barrier() for rank in group[:ranks if len(one[0]) == 17 else 0]]
        of_all(begun)
        for one, total in zip(data, totals, strict=True):
            for own in one:
                np.testing.assert_array_equal(own, total)


@pytest.mark.parametrize("port", ["auto", "udp"])
def test_calls_on_the_same_memory_come_one_after_the_other(monkeypatch, port):
    """An average is divided when it has been summed: the next call must not have begun."""
    monkeypatch.setenv("HARP_PORT", port)
    with group_of(2) as group:
        data = [np.full(400_000, value, "<f4") for value in (1.0, 3.0)]
        begun = []
        for _ in range(3):
            for reduction in ("avg", "sum"):
                begun += [rank.allreduce(raw(own), "float32", reduction)
                          for rank, own in zip(group, data, strict=True)]
            begun += [rank.broadcast(raw(own), 0) for rank, own in zip(group, data, strict=True)]
        of_all(begun)
        for own in data:
            np.testing.assert_array_equal(own, np.full(400_000, 2.0 * 2 ** 3, "<f4"))


def test_a_disagreement_names_the_later_call(monkeypatch):
    """That fails all that is under way, at all ranks by the same sentence."""
    monkeypatch.setenv("HARP_PORT", "udp")
    with group_of(3) as group:
        large = vectors(3, 2_000_000)
        begun = [rank.allreduce(raw(own), "float32")
                 for rank, own in zip(group, large, strict=True)]
        later = [rank.allreduce(raw(np.zeros(8 + (i == 1), "<f4")), "float32")
                 for i, rank in enumerate(group)]
        said = set(failures(later))
        assert len(said) == 1
        assert "call 2" in next(iter(said))
        assert "ranks do not agree" in next(iter(said))
        assert {*failures(begun)} <= {"None", *said}
