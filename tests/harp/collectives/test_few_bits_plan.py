"""Plans of few bits: their sizes against C's, and their results against the exact sum."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from harp._cnet import lib
from harp.collectives.few_bits_plan import BITS, CHUNK, message_bytes
from harp.collectives.ir import Buffer, Op
from harp.collectives.registry import make_plan
from harp.collectives.symbolic_check import check
from tests.harp.collectives.test_execute import execute
from tests.support.levels import each_once


def test_messages_have_the_size_that_c_gives_them():
    assert lib.HARP_BITS_CHUNK == CHUNK
    sizes = [0, 1, 2, 3, 5, 255, 256, 257, 511, 512, 100_003]
    for bits in BITS:
        assert message_bytes(np.array(sizes), bits).tolist() == [
            lib.harp_bits_bytes(n, bits) for n in sizes]


@pytest.mark.parametrize(("name", "bits"), each_once(
    ["few-bits", "2d-few-bits", "ring-few-bits"], BITS))
def test_vectors_of_many_chunks_are_proved(name, bits):
    for ranks, group in ((2, 1), (4, 2), (6, 3), (8, 2), (8, 8)):
        for elements in (CHUNK * ranks, CHUNK * ranks * 5, CHUNK * ranks * 3 - 77, 1000):
            check(make_plan(name, ranks=ranks, nbytes=4 * elements, group=group, bits=bits,
                            order=list(reversed(range(ranks)))))


@pytest.mark.parametrize("bits", BITS)
def test_results_are_bit_equal_and_near_the_sum(bits):
    ranks, elements = 6, 5000
    inputs = np.random.default_rng(bits).normal(size=(ranks, elements)).astype("<f4")
    plan = make_plan("2d-few-bits", ranks=ranks, nbytes=4 * elements, group=2, bits=bits)
    done = execute(plan, inputs, seed=1)
    results = [one.buffers[Buffer.DATA].view("<f4") for one in done]
    assert len({result.tobytes() for result in results}) == 1
    # A host's sum is encoded, and the sum of hosts' again: each is off by half a level at most,
    # which is the chunk's largest over twice the levels.
    hosts = inputs.reshape(3, 2, elements).sum(axis=1)
    most = 2 ** (bits - 1) - 1
    bound = 0.5 / most * (np.abs(hosts).max(axis=1).sum() * (1 + 0.5 / most)
                          + np.abs(hosts).sum(axis=0).max()) * 1.001
    assert np.abs(results[0] - inputs.sum(axis=0)).max() < bound


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("ranks", "elements"), [(2, 3000), (5, 4000), (4, 9 * CHUNK)])
def test_a_ring_does_what_numpy_does(ranks, elements, bits):
    """Each part starts at the rank of its number; all that is added up was encoded before."""
    inputs = np.random.default_rng(bits).normal(size=(ranks, elements)).astype("<f4")
    done = execute(make_plan("ring-few-bits", ranks=ranks, nbytes=4 * elements, bits=bits),
                   inputs, seed=1)
    wanted = np.empty(elements, "<f4")
    room = -(-elements // (ranks * CHUNK)) * CHUNK
    for part in range(ranks):
        own = slice(min(part * room, elements), min((part + 1) * room, elements))
        total = rounded(inputs[part, own], bits)
        for hop in range(1, ranks):
            mine = rounded(inputs[(part + hop) % ranks, own], bits)
            total = rounded(mine + total, bits)
        wanted[own] = total
    for one in done:
        np.testing.assert_array_equal(one.buffers[Buffer.DATA].view("<f4"), wanted)


def rounded(values, bits):
    """What a message says of values, by numpy."""
    most, said = np.float32(2 ** (bits - 1) - 1), []
    for first in range(0, len(values), CHUNK):
        chunk = values[first:first + CHUNK]
        peak = np.abs(chunk).max()
        said.append(np.rint(chunk * (most / peak)) * (peak / most))
    return np.concatenate([np.empty(0, "<f4"), *said]).astype("<f4")


def test_a_ring_has_every_host_send_to_one_other_as_much_as_directly():
    ring, direct = (make_plan(name, ranks=7, nbytes=4 * 7 * 3 * CHUNK, bits=8)
                    for name in ("ring-few-bits", "few-bits"))
    sent = {plan.name: Counter() for plan in (ring, direct)}
    for plan in (ring, direct):
        for rows in map(plan.step, range(plan.steps)):
            for src, dst, length in zip(rows.src, rows.dst, rows.length, strict=True):
                sent[plan.name][int(src), int(dst)] += int(length)
    assert set(sent["ring-few-bits"]) == {(rank, (rank + 1) % 7) for rank in range(7)}
    assert len(sent["few-bits"]) == 7 * 6
    assert sum(sent["ring-few-bits"].values()) == sum(sent["few-bits"].values())


def test_hosts_send_few_bits_and_floats_stay_within():
    elements, hosts, group = 12 * CHUNK * 10, 3, 4
    plan = make_plan("2d-few-bits", ranks=12, nbytes=4 * elements, group=group, bits=4)
    out = Counter()
    for step in range(plan.steps):
        rows = plan.step(step)
        apart = rows.src // group != rows.dst // group
        for host in range(hosts):
            out[host] += int(rows.length[apart & (rows.src // group == host)].sum())
    whole = int(message_bytes(elements, 4))
    assert set(out.values()) == {2 * (hosts - 1) * whole // hosts}


def test_encoding_and_adding_of_a_rank_are_counted():
    elements = 8 * CHUNK
    plan = make_plan("2d-few-bits", ranks=8, nbytes=4 * elements, group=2)
    work = [(phase.local.op, int(phase.local.elements.max()))
            for phase in plan.phases() if phase.local]
    assert work == [(Op.ENCODE, elements // 2), (Op.DECODE, 4 * CHUNK), (Op.ENCODE, CHUNK),
                    (Op.DECODE, elements)]


@pytest.mark.parametrize(("wrong", "sentence"), [
    ({"bits": 3}, "bits is 3; allowed are 8, 4, 2"),
    ({"unit_bytes": 2}, "unit_bytes is 2; few bits are of float32, 4")])
def test_an_impossible_request_is_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_plan("few-bits", **{"ranks": 2, "nbytes": 64} | wrong)
