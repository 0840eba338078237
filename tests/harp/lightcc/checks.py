"""Collectives of ranks that are threads, each checked against numpy on whole vectors."""

from __future__ import annotations

import numpy as np

from harp.lightcc.elements import REDUCTIONS, TYPES
from tests.harp.lightcc.test_group import PATIENCE_S, of_all, raw

FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
BITWISE = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
PERIOD = 100_003
"""Elements after which a long vector begins again: a prime, so that no two pieces are alike."""
ARITHMETIC = {"sum": np.add, "avg": np.add, "product": np.multiply, "min": np.minimum,
              "max": np.maximum}


def reductions_of(dtype):
    """Reductions that a type has."""
    if dtype in FLOATS:
        return [name for name in REDUCTIONS if name not in BITWISE
                and not (dtype.startswith("complex") and name in {"min", "max"})]
    return [name for name in REDUCTIONS if name != "avg"]


def values(random, dtype, elements):
    """Give elements with exact sums and products over eight ranks, in every type."""
    if dtype == "bool":
        return random.integers(0, 2, elements).astype(bool)
    if dtype.startswith("u"):
        return random.integers(0, 3, elements).astype(dtype)
    return random.integers(-2, 3, elements).astype("float32" if dtype == "bfloat16" else dtype)


def encoded(array, dtype):
    """Give a vector as it lies in memory: bfloat16 is the upper half of float32."""
    if dtype == "bfloat16":
        return (array.view(np.uint32) >> 16).astype(np.uint16)
    return array.copy()


def wide(array, dtype):
    """Give values that numpy can compare, in which zeros of both signs are alike."""
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else array


def reduced(data, dtype, reduction):
    """Reduce vectors with numpy."""
    if dtype == "bool" and reduction in {"sum", "max"}:
        reduction = "bor"
    elif dtype == "bool" and reduction in {"product", "min"}:
        reduction = "band"
    combine = (BITWISE | ARITHMETIC)[reduction]
    total = data[0].copy()
    for other in data[1:]:
        total = combine(total, other)
    if reduction == "avg":
        parts = total.view(total.real.dtype)
        total = (parts / len(data)).astype(parts.dtype).view(total.dtype)
        if dtype == "bfloat16":  # round to nearest, ties to even
            bits = total.view(np.uint32)
            total = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
    return encoded(total.astype(data[0].dtype), dtype)


LARGE_BYTES = 32 << 20
"""From this size on vectors share memory from call to call, so only one call may be under way: new
pages cost more than all that a check does with them."""
_memory = []


def repeated(period, elements, number):
    """Give elements that begin anew after a period; large ones in memory of this number."""
    if elements * period.itemsize < LARGE_BYTES:
        return np.resize(period, elements)
    while len(_memory) <= number:
        _memory.append(np.empty(0, np.uint8))
    if _memory[number].nbytes < elements * period.itemsize:
        _memory[number] = np.empty(elements * period.itemsize, np.uint8)
    found = _memory[number][:elements * period.itemsize].view(period.dtype)
    whole = elements // len(period) * len(period)
    found[:whole].reshape(-1, len(period))[:] = period
    found[whole:] = period[:elements - whole]
    return found


def vectors(group, random, elements, dtype, reduction):
    """Give a vector of each rank as it lies in memory, and the reduced one."""
    data = [values(random, dtype, min(elements, PERIOD)) for _ in group]
    wanted, held = reduced(data, dtype, reduction), [encoded(own, dtype) for own in data]
    return ([repeated(own, elements, i) for i, own in enumerate(held)],
            repeated(wanted, elements, len(group)))


def same_bits(one, other):
    """Whether memory is alike; by words, since numpy takes as long for a byte."""
    one, other = raw(one), raw(other)
    words = len(one) // 8 * 8
    return (np.array_equal(one[:words].view(np.uint64), other[:words].view(np.uint64))
            and np.array_equal(one[words:], other[words:]))


def check_equal(came, wanted, dtype="uint8"):
    """Compare values; numpy's own check is slow and says where they differ."""
    if not same_bits(came, wanted):
        np.testing.assert_array_equal(wide(came, dtype), wide(wanted, dtype))


def begin_allreduce(group, random, elements, dtype="float32", reduction="sum"):
    """Begin an allreduce at all ranks; gives its futures, and what checks the results."""
    held, wanted = vectors(group, random, elements, dtype, reduction)
    futures = [rank.allreduce(raw(own), dtype, reduction)
               for rank, own in zip(group, held, strict=True)]

    def check():
        check_equal(held[0], wanted, dtype)
        for own in held[1:]:
            check_equal(raw(own), raw(held[0]))  # bit by bit
    return futures, check


def begin_reduce_scatter(group, random, elements, dtype="float32", reduction="sum"):
    """Begin a reduce-scatter of parts of ``elements`` elements."""
    ranks = len(group)
    held, wanted = vectors(group, random, elements * ranks, dtype, reduction)
    futures = [rank.reduce_scatter(raw(own), dtype, reduction)
               for rank, own in zip(group, held, strict=True)]

    def check():
        for i, own in enumerate(held):
            part = slice(i * elements, (i + 1) * elements)
            check_equal(own[part], wanted[part], dtype)
    return futures, check


def begin_broadcast(group, random, elements):
    """Begin a broadcast of bytes."""
    root = int(random.integers(len(group)))
    data = [random.integers(0, 256, elements, np.uint8) for _ in group]
    wanted = data[root].copy()
    futures = [rank.broadcast(own, root) for rank, own in zip(group, data, strict=True)]

    def check():
        for own in data:
            check_equal(own, wanted)
    return futures, check


def begin_allgather(group, random, elements):
    """Begin an allgather of parts of ``elements`` bytes."""
    parts = [random.integers(0, 256, elements, np.uint8) for _ in group]
    data = [np.zeros(elements * len(group), np.uint8) for _ in group]
    for i, (own, part) in enumerate(zip(data, parts, strict=True)):
        own[i * elements:(i + 1) * elements] = part
    futures = [rank.allgather(own) for rank, own in zip(group, data, strict=True)]

    def check():
        wanted = np.concatenate(parts)
        for own in data:
            check_equal(own, wanted)
    return futures, check


def begin_exchange(group, random, elements):
    """Begin an all-to-all of parts of different sizes, some of none."""
    ranks = len(group)
    sizes = random.integers(0, elements + 1, (ranks, ranks)) * random.integers(0, 2, (ranks, ranks))
    outs = [[random.integers(0, 256, size, np.uint8) for size in row] for row in sizes]
    ins = [[np.zeros(size, np.uint8) for size in column] for column in sizes.T]
    futures = [rank.exchange("all_to_all", outs[i], ins[i]) for i, rank in enumerate(group)]

    def check():
        for i in range(ranks):
            for k in range(ranks):
                check_equal(ins[i][k], outs[k][i])
    return futures, check


def begin_message(group, random, elements):
    """Begin a message from one rank to another one."""
    source, to = (int(rank) for rank in random.permutation(len(group))[:2])
    data = random.integers(0, 256, elements, np.uint8)
    into, tag = np.zeros(elements, np.uint8), int(random.integers(5))
    futures = [group[source].send(data, to, tag), group[to].receive(into, source, tag)]

    def check():
        np.testing.assert_array_equal(into, data)
    return futures, check


def begin_barrier(group, random, elements):
    """Begin a barrier."""
    return [rank.barrier() for rank in group], lambda: None


COPYING = (begin_broadcast, begin_allgather, begin_exchange)
REDUCING = (begin_allreduce, begin_reduce_scatter)


def check_one(begun):
    """Wait for what was begun, and check it."""
    futures, check = begun
    of_all(futures)
    check()


def begin_any(group, random, most=100_000):
    """Begin a call of any kind, size, type and reduction."""
    elements = int(random.choice([0, 1, 7, int(random.integers(most))]))
    begin = random.choice([*COPYING, *REDUCING, *REDUCING, begin_barrier,
                           *([begin_message] if len(group) > 1 else [])])
    if begin not in REDUCING:
        return begin(group, random, elements)
    dtype = str(random.choice(list(TYPES)))
    return begin(group, random, elements, dtype, str(random.choice(reductions_of(dtype))))


__all__ = ["PATIENCE_S", "begin_any", "check_one"]
