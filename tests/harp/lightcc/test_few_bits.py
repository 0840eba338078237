"""Values in few bits: C's loops against numpy, bit for bit, and an allreduce of them."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

from harp.collectives.registry import make_plan
from harp.lightcc import few_bits, few_bits_ring
from harp.lightcc.few_bits import BITS, CHUNK, FewBits, add, message_bytes, take
from harp.lightcc.few_bits_ring import FewBitsRing
from tests.harp.lightcc.every_kernel import kernel_names, kernels
from tests.harp.lightcc.test_group import group_of, of_all
from tests.support.levels import long_except

LEAST = np.float32(2.0 ** -120)


@pytest.fixture(autouse=True, params=long_except(kernel_names(), kernel_names()[-1]))
def _form(request):
    with kernels(request.param):
        yield


in_every_form = pytest.mark.parametrize("_form", kernel_names(), indirect=True)
"""For tests of the loops; collectives over them take another form in `make test-all` only."""


# ---- numpy's way

def mixed(x):
    x = x.astype(np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def levels_of(chunk, bits, seed, first):
    """Levels and scale of at most a chunk."""
    most = np.float32(2 ** (bits - 1) - 1)
    peak = np.abs(chunk).max()
    if not np.isfinite(peak):
        return np.zeros(len(chunk), np.int64), np.float32("nan")
    if peak < LEAST:
        return np.zeros(len(chunk), np.int64), np.float32(0)
    moved = chunk * (most / peak)
    if seed:
        places = np.arange(first, first + len(chunk), dtype=np.uint32)
        dice = (mixed(places + mixed(np.array([seed]))) >> np.uint32(8)).astype(np.float32)
        levels = np.floor(moved + dice * np.float32(2.0 ** -24))
    else:
        levels = np.rint(moved)
    return np.clip(levels.astype(np.int64), -int(most), int(most)), peak / most


def numpys_message(values, error, bits, seed):
    """The message, what it says, and what is left."""
    whole = values if error is None else values + error
    message, said, left = b"", [], []
    for first in range(0, len(whole), CHUNK):
        chunk = whole[first:first + CHUNK]
        levels, scale = levels_of(chunk, bits, seed, first)
        fields = np.zeros((len(chunk) + 3) // 4 * 4, np.uint8)
        fields[:len(chunk)] = levels & (2 ** bits - 1)
        rows = fields.reshape(-1, 8 // bits).astype(np.uint32)
        packed = (rows << (np.arange(8 // bits, dtype=np.uint32) * bits)).sum(axis=1)
        packed = packed.astype(np.uint8)[:(len(chunk) * bits + 7) // 8]
        message += scale.tobytes() + packed.tobytes()
        said.append(levels.astype(np.float32) * scale)
        left.append(chunk - said[-1] if np.isfinite(scale) else np.zeros_like(chunk))
    none = [np.empty(0, np.float32)]
    return message, np.concatenate(said or none), np.concatenate(left or none)


KINDS = {
    "normal": lambda random, n: random.normal(size=n),
    "halves": lambda random, n: random.integers(-8, 9, n) / 2,
    "huge range": lambda random, n: random.normal(size=n) * 10.0 ** random.integers(-44, 38, n),
    "tiny": lambda random, n: random.normal(size=n) * 1e-38,
    "not finite": lambda random, n: np.where(random.random(n) < 0.003, np.inf,
                                             random.normal(size=n)),
}


@in_every_form
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("seed", [0, 77])
def test_messages_are_numpys_bit_for_bit(kind, bits, seed):
    for n in (0, 1, 3, 255, 256, 257, 2000):
        random = np.random.default_rng([n, bits])
        values, error = KINDS[kind](random, n).astype("<f4"), random.normal(size=n).astype("<f4")
        total = random.normal(size=n).astype("<f4")
        for kept in (None, error):
            with np.errstate(invalid="ignore"):
                wanted, said, left = numpys_message(values, kept, bits, seed)
                wanted_total = total + said
            message, own = np.zeros(message_bytes(n, bits), np.uint8), None
            if kept is not None:
                own = kept.copy()
            take(values.copy(), own, message, bits, seed)
            assert message.tobytes() == wanted
            if own is not None:
                np.testing.assert_array_equal(own, left)
            found = total.copy()
            add(found, message, bits)
            np.testing.assert_array_equal(found, wanted_total)


@in_every_form
def test_rounding_by_chance_is_right_on_average():
    values = np.full(50 * CHUNK, 0.3, "<f4")
    values[::CHUNK] = 1
    said = np.zeros_like(values)
    message = np.empty(message_bytes(len(values), 2), np.uint8)
    take(values, None, message, 2, 5)
    add(said, message, 2)
    others = np.delete(said, np.s_[::CHUNK])
    assert set(others) == {0, 1}
    assert abs(others.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / len(others))


# ---- The collective

SHAPES = [(1, 300, 1), (2, 1, 1), (3, 5000, 1), (4, 2048, 1), (4, 5000, 2), (4, 1, 2), (6, 4097, 3),
          (2, 3000, 2)]
CASES = [(*shape, bits) for shape in SHAPES for bits in BITS]


@pytest.mark.parametrize(("ranks", "elements", "intra", "bits"), long_except(
    CASES, *((*shape, BITS[i % len(BITS)]) for i, shape in enumerate(SHAPES)),
    *((4, 5000, 2, bits) for bits in BITS)))  # each shape, and each number of bits in 2D
def test_all_ranks_have_the_same_and_what_is_lost_is_kept(ranks, elements, intra, bits):
    random = np.random.default_rng([ranks, bits])
    data = [random.normal(size=elements).astype("<f4") for _ in range(ranks)]
    given = np.zeros(elements)
    got = np.zeros(elements)
    with group_of(ranks) as group:
        made = [FewBits(rank, elements, bits, intra=intra) for rank in group]
        errors = [np.zeros(elements, "<f4")[one.own] for one in made]
        for _ in range(4):
            vectors = [one.copy() for one in data]
            given += np.sum(data, axis=0, dtype=float)
            of_all(one.allreduce(own, error)
                   for one, own, error in zip(made, vectors, errors, strict=True))
            assert len({own.tobytes() for own in vectors}) == 1
            got += vectors[0]
    # Nothing is lost: what came and what is kept are what was given.
    for one, error in zip(made, errors, strict=True):
        got[one.own] += error
    np.testing.assert_allclose(got, given, atol=1e-4)


def test_eight_bits_are_near_and_averages_are_averages():
    data = [np.random.default_rng(rank).normal(size=10_000).astype("<f4") for rank in range(3)]
    wanted = np.mean(data, axis=0)
    with group_of(3) as group:
        of_all(FewBits(rank, 10_000, 8).allreduce(own, average=True)
               for rank, own in zip(group, data, strict=True))
    assert np.abs(data[0] - wanted).max() < 4 * 2 / 127


@pytest.mark.parametrize("intra", [1, 2])
def test_parts_of_a_vector_travel_beside_the_sums_of_the_one_before(intra, monkeypatch):
    """The last rank withholds its first sum until the first rank's next parts are under way."""
    elements, next_began = 5000, threading.Event()
    with group_of(4) as group:
        made = [[FewBits(rank, elements, 8, intra=intra, call=call) for call in ("one", "two")]
                for rank in group]
        begin_call = group[0]._queue._begin_call

        def noted(call, under_way):
            begin_call(call, under_way)
            if call.program.what.startswith("two"):
                next_began.set()
        add_up = made[-1][0]._add_up

        def late(*given, **options):
            assert next_began.wait(60)
            add_up(*given, **options)
        monkeypatch.setattr(group[0]._queue, "_begin_call", noted)
        monkeypatch.setattr(made[-1][0], "_add_up", late)
        vectors = [[np.full(elements, 1 + rank.rank, "<f4"), np.full(elements, 2, "<f4")]
                   for rank in group]
        of_all(one.allreduce(own) for both, owns in zip(made, vectors, strict=True)
               for one, own in zip(both, owns, strict=True))
    for first, second in vectors:
        np.testing.assert_allclose(first, 10, rtol=1e-5)
        np.testing.assert_allclose(second, 8, rtol=1e-5)


def test_a_call_on_the_same_vector_waits_for_its_sum():
    data = [np.full(5000, 1 + rank, "<f4") for rank in range(3)]
    with group_of(3) as group:
        made = [FewBits(rank, 5000, 8) for rank in group]
        of_all(future for rank, one, own in zip(group, made, data, strict=True)
               for future in (one.allreduce(own), rank.allreduce(own.view(np.uint8), "float32")))
    np.testing.assert_allclose(data[0], 18, rtol=1e-5)


STEPS = {"encode": ("take", 1), "encode the sum": ("take", 4), "add": ("add", 1),
         "decode": ("add", 5)}
"""By step of rank 1 among three: the function that it calls, and from which call on that fails."""


@pytest.mark.parametrize("algorithm", [FewBits, FewBitsRing])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_at_a_rank_fails_the_sum_at_all_ranks(algorithm, step, monkeypatch):
    """As by a lack of memory: no rank may take for a sum what the others sent for want of one."""
    home = {FewBits: few_bits, FewBitsRing: few_bits_ring}[algorithm]
    function, from_call = STEPS[step]
    works, calls = getattr(home, function), []
    with group_of(3) as group:
        data = [np.ones(5000, "<f4") for _ in group]

        def fail(*given):
            if np.shares_memory(given[0], data[1]):
                calls.append(given)
                if len(calls) >= from_call:
                    raise MemoryError("no memory")
            return works(*given)
        monkeypatch.setattr(home, function, fail)
        futures = [algorithm(rank, 5000, 8).allreduce(own)
                   for rank, own in zip(group, data, strict=True)]
        said = [str(future.exception(60)) for future in futures]
    assert re.fullmatch("rank 1 could not .*: MemoryError: no memory", said[1])
    if step != "decode":  # by then the others have what they need
        assert said == [said[1]] * 3


@pytest.mark.parametrize(("algorithm", "words"), [
    (FewBits, ""), (FewBitsRing, " around a ring, hop 1 of ")])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_with_other_bits_are_named(algorithm, words, ranks):
    """Also where a message of another size comes before the ranks have compared their calls."""
    with group_of(ranks) as group:
        futures = [algorithm(rank, 5000, 4 if rank.rank == 1 else 8).allreduce(
            np.zeros(5000, "<f4")) for rank in sorted(group, key=lambda rank: rank.rank != 1)]
        said = {str(future.exception(60)) for future in futures}
    assert len(said) == 1
    assert "rank 1 calls allreduce of 5000 float32, sum, in 4 bits" + words in said.pop()


def test_bits_that_cannot_be_are_refused():
    with group_of(1) as group, pytest.raises(ValueError, match="bits is 3; allowed are 8, 4, 2"):
        FewBits(group[0], 10, 3)


def test_hosts_of_other_sizes_are_refused():
    with group_of(4) as group, pytest.raises(ValueError, match="intra is 3; allowed is a divisor"):
        FewBits(group[0], 10, 8, intra=3)


@pytest.mark.parametrize("intra", [1, 2])
def test_a_host_sends_few_bits_and_a_hosts_ranks_float32(intra, monkeypatch):
    """Bytes between hosts are those of a ring over hosts, of one message of all."""
    sent = {}
    elements = 8 * CHUNK * 4
    with group_of(4) as group:
        for rank in group:
            exchange = rank.exchange

            def counted(call, outs, ins, data, rank=rank, exchange=exchange):
                for peer, out in enumerate(outs):
                    if peer // 2 != rank.rank // 2:
                        sent[rank.rank // 2] = sent.get(rank.rank // 2, 0) + len(out)
                return exchange(call, outs, ins, data)
            monkeypatch.setattr(rank, "exchange", counted)
        of_all(FewBits(rank, elements, 8, intra=intra).allreduce(np.ones(elements, "<f4"))
               for rank in group)
    times = {1: 2, 2: 1}[intra]
    assert sent == dict.fromkeys((0, 1), times * message_bytes(elements, 8))


@pytest.mark.parametrize(("ranks", "intra", "elements"), [
    (2, 1, 5000), (3, 1, 700), (4, 2, 5000), (4, 2, 4 * CHUNK), (6, 3, 4097)])
def test_ranks_send_one_another_what_the_plan_says(ranks, intra, elements, monkeypatch):
    """Of the plan that the simulator runs: each exchange is one of its steps, byte for byte."""
    plan = make_plan("2d-few-bits", ranks=ranks, nbytes=4 * elements, group=intra, bits=4)
    planned = [rows for rows in map(plan.step, range(plan.steps)) if len(rows)]
    wanted = [{(src, dst): length for src, dst, length in zip(
        rows.src.tolist(), rows.dst.tolist(), rows.length.tolist(), strict=True)}
        for rows in planned]
    sent = [[] for _ in range(ranks)]
    with group_of(ranks) as group:
        for rank in group:
            def noted(call, outs, ins, data, rank=rank, exchange=rank.exchange):
                sent[rank.rank].append({(rank.rank, peer): len(out) for peer, out in
                                        enumerate(outs) if len(out) and peer != rank.rank})
                return exchange(call, outs, ins, data)
            monkeypatch.setattr(rank, "exchange", noted)
        of_all(FewBits(rank, elements, 4, intra=intra).allreduce(np.ones(elements, "<f4"))
               for rank in group)
    together = [{pair: nbytes for own in calls for pair, nbytes in own.items()}
                for calls in zip(*sent, strict=True)]
    assert [step for step in together if step] == wanted
