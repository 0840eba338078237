"""Sparse allreduce with error feedback, against numpy; selection against a sort."""

from __future__ import annotations

import numpy as np
import pytest

from harp._cnet import ffi, lib
from harp.collectives.execute import largest
from harp.lightcc.settings import LightSettings
from tests.harp.lightcc.every_kernel import kernel_names, kernels
from tests.harp.lightcc.test_group import PATIENCE_S, group_of, of_all, raw
from tests.support.levels import long, long_except

PAIR = {4: np.dtype([("value", "<f4"), ("index", "<i4")]),
        2: np.dtype([("value", "<f2"), ("index", "<i4")])}


@pytest.fixture(autouse=True, params=long_except(kernel_names(), kernel_names()[-1]))
def _form(request):
    with kernels(request.param):
        yield


in_every_form = pytest.mark.parametrize("_form", kernel_names(), indirect=True)
"""For tests of the loops; collectives over them take another form in `make test-all` only."""


def select(values, kept, value_bytes=4, error=None):
    pairs = np.zeros(kept, PAIR[value_bytes])
    lib.harp_topk_select(
        ffi.cast("float *", values.ctypes.data),
        ffi.NULL if error is None else ffi.cast("float *", error.ctypes.data),
        len(values), ffi.cast("uint8_t *", pairs.ctypes.data), kept, PAIR[value_bytes].itemsize)
    return pairs


KINDS = {
    "normal": lambda random, n: random.normal(size=n),
    "few values": lambda random, n: random.integers(-3, 4, n),
    "all alike": lambda random, n: np.full(n, -2.0),
    "mostly zero": lambda random, n: random.normal(size=n) * (random.random(n) < 0.003),
    "huge range": lambda random, n: random.normal(size=n) * 10.0 ** random.integers(-44, 38, n),
    "growing": lambda random, n: np.arange(n),
    "only every 41st": lambda random, n: (np.arange(n) % 41 == 7) * random.normal(size=n),
}


@in_every_form
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "kept"), [
    (1, 1), (7, 3), (64, 64), (1000, 10), (1041, 1041), (100_003, 1000), (300_007, 3000),
    (70_001, 70_000), *(pytest.param(1_000_000, kept, marks=long) for kept in (10_000, 250_000))])
def test_the_largest_are_selected_and_the_first_of_equals(kind, n, kept):
    values = KINDS[kind](np.random.default_rng(n), n).astype("<f4")
    before = values.copy()
    pairs = select(values, kept)
    np.testing.assert_array_equal(pairs["index"], np.sort(largest(before, kept)))
    np.testing.assert_array_equal(pairs["value"], before[pairs["index"]])
    np.testing.assert_array_equal(values, before)


def sample(values, kept, value_bytes=4, error=None):
    pairs = np.zeros(kept, PAIR[value_bytes])
    lib.harp_topk_sample(
        ffi.cast("float *", values.ctypes.data),
        ffi.NULL if error is None else ffi.cast("float *", error.ctypes.data),
        len(values), ffi.cast("uint8_t *", pairs.ctypes.data), kept, PAIR[value_bytes].itemsize)
    sent = pairs[pairs["index"] >= 0]
    assert (pairs["index"][len(sent):] == -1).all()
    return sent


@in_every_form
@pytest.mark.parametrize("value_bytes", [2, 4])
@pytest.mark.parametrize(("n", "kept"), [(200_000, 2000), (100_000, 10_000)])
def test_a_sample_selects_almost_all_of_the_largest(n, kept, value_bytes):
    """The bound of topk.h, over ten draws: what is sent are the largest, and most of them."""
    room = kept * PAIR[value_bytes].itemsize // 4
    stride = (n // min(room, 65536) + 1) | 1
    expected = n // stride * kept / n
    astray = 0
    for seed in range(10):
        values = np.random.default_rng(seed).normal(size=n).astype("<f4")
        sent = sample(values, kept, value_bytes)
        exact = set(largest(values, kept).tolist())
        astray += not set(sent["index"].tolist()) <= exact
        assert kept * (1 - 6 / expected**0.5) <= len(sent) <= kept
        np.testing.assert_array_equal(np.diff(sent["index"]) > 0, True)
    assert astray <= 2


@in_every_form
@pytest.mark.parametrize("kind", KINDS)
def test_values_below_a_sampled_threshold_are_not_lost(kind):
    """Also where the sample is blind for what the values are."""
    random = np.random.default_rng(6)
    error, sent, wanted = np.zeros(20_000, "<f4"), np.zeros(20_000), np.zeros(20_000)
    for _ in range(5):
        values = np.clip(KINDS[kind](random, 20_000), -1e6, 1e6).astype("<f4")
        wanted += values
        pairs = sample(values, 1000, 4, error)
        np.add.at(sent, pairs["index"], pairs["value"].astype("<f8"))
    np.testing.assert_allclose(sent + error, wanted, rtol=1e-5, atol=0.5)


@in_every_form
def test_few_values_are_selected_exactly_instead_of_by_a_sample():
    values = np.random.default_rng(7).normal(size=3000).astype("<f4")
    np.testing.assert_array_equal(sample(values, 30), select(values, 30))


@in_every_form
@pytest.mark.parametrize("value_bytes", [2, 4])
def test_unsent_values_stay_as_error_and_nothing_is_lost(value_bytes):
    random = np.random.default_rng(1)
    error, sent, wanted = np.zeros(5000, "<f4"), np.zeros(5000), np.zeros(5000)
    for _ in range(20):
        values = (random.normal(size=5000) * 1000).astype("<f4")
        wanted += values
        pairs = select(values, 50, value_bytes, error)
        np.add.at(sent, pairs["index"], pairs["value"].astype("<f8"))
    np.testing.assert_allclose(sent + error, wanted, rtol=1e-4, atol=0.5)
    assert np.abs(error).max() < 20 * 1000


@in_every_form
def test_a_value_too_large_for_float16_is_sent_in_parts():
    error, values = np.zeros(3, "<f4"), np.array([1e5, 1, -2e5], "<f4")
    pairs = select(values, 2, 2, error)
    assert pairs["value"].tolist() == [65504.0, -65504.0]
    np.testing.assert_array_equal(error, np.array([1e5 - 65504, 1, 65504 - 2e5], "<f4"))


@in_every_form
def test_a_nan_is_sent_first():
    assert select(np.array([1e30, np.nan, np.inf], "<f4"), 1)["index"].tolist() == [1]


@in_every_form
@pytest.mark.parametrize("selects", [select, sample])
@pytest.mark.parametrize("value_bytes", [2, 4])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [1, 5000])
def test_an_overflow_is_over_when_its_step_is(selects, value_bytes, value, count):
    """What is not finite is sent first and never kept, also where more of it is than is sent."""
    random = np.random.default_rng(8)
    error = random.normal(size=100_000).astype("<f4")
    values = random.normal(size=100_000).astype("<f4")
    values[random.choice(100_000, count, replace=False)] = value
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite(selects(values, 1000, value_bytes, error)["value"]).all()
    assert np.isfinite(error).all()
    again = selects(random.normal(size=100_000).astype("<f4"), 1000, value_bytes, error)
    assert np.isfinite(again["value"]).all()


@in_every_form
@pytest.mark.parametrize("shift", [0, 2, 4, 6])
def test_values_are_narrowed_as_numpy_does_wherever_pairs_lie(shift):
    random = np.random.default_rng(5)
    values = random.integers(0, 2**32, 20_000, "u4").view("<f4")
    values = values[np.abs(values) < 65504]  # larger ones are sent in parts
    values = np.concatenate([values, [0, -0.0, 6e-8, 2.9e-8, 3e-8, -6.1e-5, 65503]]).astype("<f4")
    memory = np.zeros(len(values) * 6 + shift, np.uint8)
    lib.harp_topk_select(ffi.cast("float *", values.ctypes.data), ffi.NULL, len(values),
                         ffi.from_buffer("uint8_t[]", memory[shift:]), len(values), 6)
    pairs = np.frombuffer(memory[shift:].tobytes(), PAIR[2])
    assert pairs["value"].tobytes() == values.astype("<f2").tobytes()
    np.testing.assert_array_equal(pairs["index"], np.arange(len(values)))


@in_every_form
@pytest.mark.parametrize("value_bytes", [2, 4])
def test_pairs_are_added_up(value_bytes):
    random = np.random.default_rng(2)
    pairs = np.zeros(333, PAIR[value_bytes])
    pairs["index"], pairs["value"] = random.integers(0, 100, 333), random.integers(-9, 9, 333)
    values = np.full(100, 7, "<f4")
    lib.harp_topk_add(ffi.cast("float *", values.ctypes.data), 100,
                      ffi.cast("uint8_t *", pairs.ctypes.data), 333, PAIR[value_bytes].itemsize)
    wanted = np.zeros(100)
    np.add.at(wanted, pairs["index"], pairs["value"].astype("<f8"))
    np.testing.assert_array_equal(values, wanted)


def sparse(**settings):
    return LightSettings(topk=True, topk_threshold_bytes=4000, topk_ratio=0.05, **settings)


def test_every_rank_gets_the_sum_of_what_was_sent():
    random = np.random.default_rng(3)
    with group_of(4, settings=sparse()) as made:
        data = [random.normal(size=2000).astype("<f4") for _ in made]
        errors = [np.zeros(made[0].error_bytes(8000, "float32") // 4, "<f4") for _ in made]
        wanted = np.zeros(2000, "<f8")
        for own in data:
            chosen = largest(own, 100)
            wanted[chosen] += own[chosen].astype("<f8")
        left = [np.where(np.isin(np.arange(2000), largest(own, 100)), 0, own) for own in data]
        of_all(rank.allreduce(raw(own), "float32", "sum", raw(error))
               for rank, own, error in zip(made, data, errors, strict=True))
        for own, error, rest in zip(data, errors, left, strict=True):
            np.testing.assert_allclose(own, wanted, rtol=1e-5)
            assert own.tobytes() == data[0].tobytes()
            np.testing.assert_array_equal(error, rest)


@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize("two_d", [False, True])
def test_over_many_steps_the_average_is_that_of_all_gradients(two_d, fp16):
    """The law of error feedback: what came and what is left add up to what was given."""
    random = np.random.default_rng(4)
    settings = sparse(two_d=two_d, intra_size=2, topk_fp16=fp16)
    with group_of(4, settings=settings) as made:
        errors = [np.zeros(made[0].error_bytes(8000, "float32") // 4, "<f4") for _ in made]
        came, given = np.zeros(2000), np.zeros(2000)
        for _ in range(10):
            data = [random.normal(size=2000).astype("<f4") for _ in made]
            given += np.sum(data, axis=0, dtype="<f8")
            of_all(rank.allreduce(raw(own), "float32", "sum", raw(error))
                   for rank, own, error in zip(made, data, errors, strict=True))
            assert all(own.tobytes() == data[0].tobytes() for own in data)
            came += data[0]
        if two_d:  # a rank keeps the error of its part of the host's sum
            kept = np.concatenate([errors[0] + errors[2], errors[1] + errors[3]])
        else:
            kept = np.sum(errors, axis=0, dtype="<f8")
        np.testing.assert_allclose(came + kept, given, atol=2e-3)


def test_without_memory_for_its_error_a_sum_is_dense():
    with group_of(2, settings=sparse()) as made:
        data = [np.arange(2000, dtype="<f4") for _ in made]
        of_all(rank.allreduce(raw(own), "float32") for rank, own in zip(made, data, strict=True))
        np.testing.assert_array_equal(data[0], 2 * np.arange(2000))


@pytest.mark.parametrize(("nbytes", "dtype"), [(8000, "float16"), (3996, "float32")])
def test_other_types_and_small_tensors_have_no_error(nbytes, dtype):
    with group_of(2, settings=sparse()) as made:
        assert made[0].error_bytes(nbytes, dtype) == 0


def test_an_error_of_another_size_is_refused():
    with group_of(2, settings=sparse()) as made, \
            pytest.raises(ValueError, match="with an error of 8000 B"):
        made[0].allreduce(np.zeros(8000, np.uint8), "float32", "sum", np.zeros(4, np.uint8)
                          ).result(PATIENCE_S)
