"""A collective that is ready to run: its words, its memory and its small messages."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harp._cnet import ffi
from harp.collectives.doubling import find_partners
from harp.lightcc.mover import DESCRIPTOR_BYTES
from harp.lightcc.pieces import SEND, table
from harp.lightcc.program import Program, read_descriptor, small_broadcast


def test_programs_are_apart_where_both_name_all_of_their_memory():
    memory = np.zeros(100, np.uint8)

    def program(data):
        return Program("a test", table([]), 0, 2, data=data)

    left, right, both = program(memory[:50]), program(memory[50:]), program(memory[49:51])
    assert left.is_apart(right)
    assert right.is_apart(left)
    assert not left.is_apart(both)
    assert not both.is_apart(right)
    assert not left.is_apart(left)
    assert not left.is_apart(program(None))
    assert not program(None).is_apart(left)


def delivered(ranks, root, nbytes):
    """Play the small broadcasts of all ranks: messages of a pair come in order."""
    memory = [np.full(nbytes, 7 if rank == root else 0, np.uint8) for rank in range(ranks)]
    pieces = [deque(small_broadcast(memory[rank], rank, ranks, root)) for rank in range(ranks)]
    wires = defaultdict(deque)
    while any(pieces):
        moved = False
        for rank, left in enumerate(pieces):
            while left:
                piece = left[0]
                peer, size = int(piece["peer"]), int(piece["bytes"])
                if piece["kind"] == SEND:
                    wires[rank, peer].append(memory[rank][:size].copy())
                elif wires[peer, rank]:
                    memory[rank][:size] = wires[peer, rank].popleft()
                else:
                    break
                left.popleft()
                moved = True
        assert moved, "ranks wait for one another"
    assert not any(wires.values())
    return memory


@given(st.integers(1, 20), st.integers(0, 19), st.integers(0, 9))
def test_a_small_broadcast_reaches_all_ranks_over_links_of_partners_alone(ranks, root, nbytes):
    root %= ranks
    assert all((data == 7).all() for data in delivered(ranks, root, nbytes))
    for rank in range(ranks):
        pieces = small_broadcast(np.zeros(4, np.uint8), rank, ranks, root)
        assert {int(peer) for peer in pieces["peer"]} <= set(find_partners(rank, ranks))


@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters="\0"), max_size=300))
def test_a_descriptor_has_the_words_of_its_call_and_room_for_its_number(what):
    program = Program(what, table([]), 0, 2)
    program.number[0] = 1 << 60
    said = bytes(ffi.buffer(program.work.said, program.work.said_bytes))
    assert len(said) % 64 == 0
    assert len(said) <= DESCRIPTOR_BYTES
    heard = read_descriptor(said)
    assert what.startswith(heard)
    assert heard == what or len(heard) == DESCRIPTOR_BYTES - 9


def test_a_program_may_have_other_pieces_when_it_begins():
    later = table([(0, 0, 0, 0, SEND, 1, 1)] * 3)
    program = Program("a test", table([]), 0, 2, prepare=lambda: later)
    assert program.pieces_n == 2
    program.begin()
    assert program.pieces_n == 5
