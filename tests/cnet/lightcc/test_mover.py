"""A mover: pieces of two ranks, in the order that their bytes demand."""

import numpy as np
import pytest

from harp._cnet import ffi
from harp.lightcc.elements import combination
from harp.lightcc.mover import RUNS
from harp.lightcc.pieces import PLACE, REDUCE, SEND, address, table
from tests.harp.lightcc.test_group import PATIENCE_S
from tests.harp.lightcc.test_mover_direct import two_movers


@pytest.fixture(params=["auto", "udp"])
def movers(request, monkeypatch):
    """Give two ranks' movers: through memory, and over UDP."""
    monkeypatch.setenv("HARP_PORT", request.param)
    with two_movers() as (_, made):
        yield made


class Given:
    """Runs that a mover has, and what must stay until they are over."""

    def __init__(self, mover, rank) -> None:
        self.mover, self.peer, self.held = mover, 1 - rank, []

    def add(self, *pieces) -> None:
        rows = table([(address(data), 0, len(data), 0, kind, self.peer, 0)
                      for kind, data in pieces])
        work = ffi.new("struct harp_piece_work *", {"reduce": combination("uint8", "sum")})
        buffer = ffi.from_buffer("struct harp_piece[]", rows)
        self.held.append((pieces, rows, work, buffer))
        self.mover.add(buffer, len(rows), work, int(PATIENCE_S * 1e9))


def go_on(*given, runs=1):
    left = [runs] * len(given)
    while any(left):
        for number, one in enumerate(given):
            left[number] -= bool(left[number] and one.mover.go_on())


def test_a_piece_is_placed_reduced_and_passed_on_in_the_order_of_the_list(movers):
    """Rank 0 sends 1; rank 1 adds it to 2 and sends 3 back, and only then places 9 over it."""
    first, second = (Given(mover, rank) for rank, mover in enumerate(movers))
    one, nine, back = (np.full(5000, value, np.uint8) for value in (1, 9, 0))
    there = np.full(5000, 2, np.uint8)
    first.add((SEND, one), (PLACE, back), (SEND, nine))
    second.add((REDUCE, there), (SEND, there), (PLACE, there))
    go_on(first, second)
    assert set(back.tolist()) == {3}
    assert set(there.tolist()) == {9}


def test_runs_are_over_in_their_order_and_have_a_limit(movers):
    first, second = (Given(mover, rank) for rank, mover in enumerate(movers))
    sent = [np.full(100, number, np.uint8) for number in range(RUNS)]
    came = [np.zeros(100, np.uint8) for _ in range(RUNS)]
    for out, into in zip(sent, came, strict=True):
        first.add((SEND, out))
        second.add((PLACE, into))
    with pytest.raises(RuntimeError, match="are under way; that is the limit"):
        first.add((SEND, sent[0]))
    go_on(first, second, runs=RUNS)
    assert all((out == into).all() for out, into in zip(sent, came, strict=True))
