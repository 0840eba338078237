"""Messages of SparseLoCo, read by another reader than the product's."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from harp.lightcc.outer import sparse  # noqa: E402
from harp.lightcc.outer_policy import OuterPolicy  # noqa: E402


def policy(bits, keep=5, chunk=64):
    return OuterPolicy("sparseloco", 1, keep=keep, chunk=chunk, bits=bits)


def vector(elements, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=elements).astype(np.float32))


def read(message, elements, rule):
    """Read a message as its docstring describes it, bit by bit."""
    data, found = bytes(message.numpy()), np.zeros(elements, np.float64)
    for number in range(-(-elements // rule.chunk)):
        row = data[number * rule.chunk_bytes:(number + 1) * rule.chunk_bytes]
        scale = float(np.frombuffer(row[:4], "<f4")[0])
        stream = "".join(f"{byte:08b}" for byte in row[4:])
        each = rule.index_bits + rule.bits
        for first in range(0, rule.keep * each, each):
            place = int(stream[first:first + rule.index_bits], 2)
            level = int(stream[first + rule.index_bits:first + each], 2)
            value = scale * (2 * level / ((1 << rule.bits) - 1) - 1)
            if number * rule.chunk + place < elements:
                found[number * rule.chunk + place] += value
            else:
                assert abs(value) <= scale
    return found


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("elements", [64, 640, 1000, 1])
def test_a_message_has_the_size_and_the_values_that_it_says(bits, elements):
    rule, error = policy(bits), vector(elements)
    before = error.numpy().copy()
    message = sparse.take(error, rule)
    assert message.dtype == torch.uint8
    assert len(message) == rule.message_bytes(elements)
    sent = read(message, elements, rule)
    total = torch.zeros(elements)
    sparse.add(message, total, rule)
    np.testing.assert_allclose(total.numpy(), sent, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(before - error.numpy(), sent, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8, 32])
@pytest.mark.parametrize("elements", [100, 5000])
def test_sent_and_kept_are_what_was_there(bits, elements):
    """Places are read ahead of sums: of all values, and of a small part of them."""
    rule, error = policy(bits), vector(elements)
    before, total = error.clone(), torch.zeros(elements)
    sparse.add(sparse.take(error, rule), total, rule)
    torch.testing.assert_close(total + error, before, rtol=0, atol=1e-6)
    if bits == 32:
        assert torch.equal(total + error, before)


def test_the_largest_of_each_chunk_are_sent():
    error, total = vector(640), torch.zeros(640)
    before = error.numpy().copy()
    sparse.add(sparse.take(error, policy(32)), total, policy(32))
    for first in range(0, 640, 64):
        largest = np.argsort(-np.abs(before[first:first + 64]))[:5]
        assert set(np.flatnonzero(total.numpy()[first:first + 64])) == set(largest.tolist())


def test_a_value_of_few_bits_is_off_by_half_a_level_at_most():
    for bits in (2, 4, 8):
        rule, error = policy(bits, keep=64), vector(64)
        scale = float(error.abs().max())
        sparse.take(error, rule)
        assert float(error.abs().max()) <= scale / ((1 << bits) - 1) * 1.0001


def test_nothing_but_zeros_stays_so():
    error, total = torch.zeros(100), torch.zeros(100)
    sparse.add(sparse.take(error, policy(8, keep=64)), total, policy(8, keep=64))
    assert float(total.abs().max()) == 0
    assert float(error.abs().max()) == 0


@pytest.mark.parametrize("kind", ["normal", "equal", "zeros", "steps", "tiny", "growing"])
@pytest.mark.parametrize(("keep", "chunk"), [(1, 2), (5, 64), (64, 64), (7, 100), (64, 4096)])
def test_the_places_are_those_of_a_stable_sort(kind, keep, chunk):
    """Of equals the first, in chunks of every kind, whatever the chunk before was like."""
    random = np.random.default_rng([keep, chunk])
    elements = 3 * chunk + chunk // 2
    values = {"normal": random.normal(size=elements), "equal": np.full(elements, -2.5),
              "zeros": np.zeros(elements), "steps": random.integers(-3, 4, elements),
              "tiny": random.normal(size=elements) * 1e-42,
              "growing": random.normal(size=elements) * 10.0 ** np.linspace(-30, 30, elements),
              }[kind].astype(np.float32)
    rule = policy(32, keep, chunk)
    message = bytes(sparse.take(torch.from_numpy(values.copy()), rule).numpy())
    filled = np.zeros(4 * chunk, np.float32)
    filled[:elements] = values
    for number, row in enumerate(filled.reshape(4, chunk)):
        wanted = np.sort(np.argsort(-np.abs(row), kind="stable")[:keep])
        stream = "".join(f"{byte:08b}" for byte in
                         message[number * rule.chunk_bytes:(number + 1) * rule.chunk_bytes])
        each = rule.index_bits + 32
        found = [stream[first:first + each] for first in range(0, keep * each, each)]
        assert [int(one[:rule.index_bits], 2) for one in found] == wanted.tolist()
        bits = np.array([int(one[rule.index_bits:], 2) for one in found], np.uint32)
        np.testing.assert_array_equal(bits.view(np.float32), row[wanted])


@pytest.mark.parametrize("bits", [2, 4, 8, 32])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [1, 7])
def test_values_that_are_not_finite_are_seen_and_not_kept(bits, value, count):
    """Also where a chunk has more of them than are sent."""
    error, total = vector(640), torch.zeros(640)
    error[100:100 + count] = value
    sparse.add(sparse.take(error, policy(bits)), total, policy(bits))
    assert not torch.isfinite(total[64:128]).all()
    assert torch.isfinite(total[:64]).all()
    assert torch.isfinite(total[128:]).all()
    assert torch.isfinite(error).all()


def test_an_element_s_mean_is_by_weight_over_the_messages_that_have_it():
    rule, rows = policy(32, keep=2, chunk=8), torch.zeros(3, 8)
    rows[0, [1, 4]] = torch.tensor([2.0, -1.0])
    rows[1, [1, 6]] = torch.tensor([5.0, 7.0])
    rows[2, [4, 6]] = torch.tensor([3.0, -1.0])
    messages = [sparse.take(row, rule) for row in rows]
    found = sparse.mean(messages, [1.0, 3.0, 0.0], 8, rule)
    assert found.tolist() == [0, (2 + 3 * 5) / 4, 0, 0, -1, 0, 7, 0]
    assert sparse.mean(messages[2:], [0.0], 8, rule).tolist() == [0] * 8
