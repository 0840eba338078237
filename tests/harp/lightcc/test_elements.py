"""Reductions of C, against numpy: every type, size and alignment, and numbers of all kinds."""

from __future__ import annotations

import numpy as np
import pytest

from harp._cnet import ffi
from harp.lightcc.elements import REDUCTIONS, TYPES, combination, divide, element_type
from harp.lightcc.pieces import address
from tests.harp.lightcc.every_kernel import kernel_names, kernels

SIZES = [*range(70), 127, 128, 129, 1000]
NUMPYS = {"sum": np.add, "avg": np.add, "product": np.multiply, "min": np.minimum,
          "max": np.maximum, "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
INTEGERS = [name for name, kind in TYPES.items() if kind.kind in "iu" and name != "bfloat16"]
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]


@pytest.fixture(autouse=True, params=kernel_names())
def _in_every_form(request):
    with kernels(request.param):
        yield


def reduced(dtype, reduction, there, came, shift=0):
    """Reduce in memory that is moved by some bytes from where it would be aligned."""
    moved = [np.empty(array.nbytes + shift, np.uint8) for array in (there, came)]
    for memory, array in zip(moved, (there, came), strict=True):
        memory[shift:] = array.view(np.uint8)
    combination(dtype, reduction)(
        ffi.from_buffer("uint8_t[]", moved[0][shift:], require_writable=True),
        ffi.from_buffer("uint8_t[]", moved[1][shift:]), there.nbytes)
    assert moved[1][shift:].tobytes() == came.tobytes()
    return moved[0][shift:].copy().view(there.dtype)


def random_bits(dtype, elements, seed=0):
    """Elements of all kinds: infinite, subnormal, not a number, negative zero."""
    kind = TYPES[dtype]
    random = np.random.default_rng(seed)
    return random.integers(0, 256, elements * kind.itemsize, np.uint8).view(kind)


def assert_equal_bits(found, wanted):
    """Every NaN is like every other one."""
    if found.dtype.kind == "f":
        assert (np.isnan(found) == np.isnan(wanted)).all()
        found, wanted = (np.where(np.isnan(x), x.dtype.type(0), x) for x in (found, wanted))
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("shift", [0, 1, 7])
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_reductions_are_numpys(dtype, shift):
    for elements in SIZES:
        reductions_are_numpys(dtype, elements, shift)


def reductions_are_numpys(dtype, elements, shift):
    one, other = (random_bits(dtype, elements, seed) for seed in (1, 2))
    for reduction in REDUCTIONS:
        if reduction.startswith("b") and dtype in FLOATS:
            continue
        if reduction == "avg" and dtype in INTEGERS:
            continue
        with np.errstate(all="ignore"):
            wanted = NUMPYS[reduction](one, other)
        if reduction in {"min", "max"} and dtype in FLOATS:
            wanted = np.where((one == 0) & (other == 0), 0, wanted).astype(wanted.dtype)
            found = reduced(dtype, reduction, one, other, shift)
            found = np.where(found == 0, 0, found).astype(found.dtype)  # which zero is either's
        else:
            found = reduced(dtype, reduction, one, other, shift)
        assert_equal_bits(found, wanted)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_sums_and_products_are_those_of_their_parts(dtype):
    random = np.random.default_rng(3)
    one, other = ((random.normal(size=999) + 1j * random.normal(size=999)).astype(dtype)
                  for _ in range(2))
    np.testing.assert_array_equal(reduced(dtype, "sum", one, other), one + other)
    product = reduced(dtype, "product", one, other)  # numpy's own may round once less
    np.testing.assert_array_equal(product.real, one.real * other.real - one.imag * other.imag)
    np.testing.assert_array_equal(product.imag, one.real * other.imag + one.imag * other.real)


@pytest.mark.parametrize("reduction", ["sum", "product", "min", "max", "band", "bor", "bxor"])
def test_reductions_of_truth_are_logical(reduction):
    one, other = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    logical = {"sum": np.logical_or, "max": np.logical_or, "bor": np.logical_or,
               "product": np.logical_and, "min": np.logical_and, "band": np.logical_and,
               "bxor": np.logical_xor}
    np.testing.assert_array_equal(reduced("bool", reduction, one, other),
                                  logical[reduction](one, other))


@pytest.mark.parametrize(("dtype", "reduction"), [
    ("bool", "avg"), ("float32", "band"), ("bfloat16", "bxor"),
    ("complex64", "min")])
def test_an_operation_that_a_type_lacks_is_refused(dtype, reduction):
    with pytest.raises(ValueError, match=f"elements of type {dtype} have no reduction"):
        combination(dtype, reduction)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 200, 65537])
def test_averages_of_integers_are_rounded_towards_zero(dtype, ranks):
    """Python's integers, of any length, say what is right."""
    limits = np.iinfo(dtype)
    random = np.random.default_rng(ranks)
    sums = np.concatenate([
        random.integers(limits.min, limits.max, 200, dtype, endpoint=True),
        np.array([limits.min, limits.max, 0, 1], dtype)])
    found = sums.copy()
    divide(found.ctypes.data, found.nbytes, dtype, ranks)
    wanted = [(abs(number) // ranks) * (1 if number > 0 else -1) for number in sums.tolist()]
    assert found.tolist() == wanted


def test_every_float16_is_widened_and_rounded_as_numpy_does():
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    for other in (0.0, 1.0, -1.5, 6e-8, 6.1e-5, 65504.0, 1000.0, 0.33325):
        came = np.full_like(every, other)
        for reduction in ("sum", "product"):
            with np.errstate(all="ignore"):
                wanted = NUMPYS[reduction](every, came)
            assert_equal_bits(reduced("float16", reduction, every, came), wanted)


def test_forms_differ_in_nothing_but_speed():
    """Infinities and subnormal numbers included; which NaN comes of two is not said."""
    for dtype in ("float16", "bfloat16", "float32"):
        one, other = (random_bits(dtype, 100_001, seed) for seed in (5, 6))
        for reduction in ("sum", "product", "min", "max"):
            with kernels("portable"):
                wanted = reduced(dtype, reduction, one, other)
            found = reduced(dtype, reduction, one, other)
            if dtype == "bfloat16":
                found, wanted = ((words.astype("<u4") << 16).view("<f4")
                                 for words in (found, wanted))
            assert_equal_bits(found, wanted)


def narrowed(value):
    """Give the bfloat16 nearest to a float32: of the two around it, the even one if both are."""
    below = np.float32(value).view(np.uint32) & np.uint32(0xFFFF0000)
    above = below + np.uint32(0x10000)
    far = [abs(float(bits.view(np.float32)) - float(value)) for bits in (below, above)]
    if far[0] == far[1]:
        return below if not below >> 16 & 1 else above
    return below if far[0] < far[1] else above


def test_bfloat16_is_reduced_in_float32_and_rounded_to_nearest_even():
    random = np.random.default_rng(4)
    words = [(random.normal(size=2000) * 10.0 ** random.integers(-3, 4, 2000)).astype("<f4")
             .view("<u4") >> 16 for _ in range(2)]
    one, other = (word.astype(np.uint16) for word in words)
    wide = [(word << 16).astype("<u4").view("<f4") for word in words]
    for reduction in ("sum", "product", "min", "max"):
        wanted = [int(narrowed(value)) >> 16 for value in NUMPYS[reduction](*wide)]
        np.testing.assert_array_equal(reduced("bfloat16", reduction, one, other), wanted)


@pytest.mark.parametrize(("one", "other", "nearest"), [
    (1.0, 2**-8, 1.0),  # half way: the even neighbour is below
    (1 + 2**-7, 2**-8, 1 + 2**-6),  # half way: the even neighbour is above
    (1 + 2**-7, 2**-9, 1 + 2**-7), (3.38e38, 3.38e38, np.inf), (np.inf, 1.0, np.inf),
    (np.nan, 1.0, np.nan)])
def test_sums_of_bfloat16_at_the_edges(one, other, nearest):
    there, came = ((np.array([value], "<f4").view("<u4") >> 16).astype("<u2")
                   for value in (one, other))
    found = reduced("bfloat16", "sum", there, came)
    np.testing.assert_equal((found.astype("<u4") << 16).view("<f4")[0], np.float32(nearest))


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
@pytest.mark.parametrize("ranks", [1, 3, 7, 64])
def test_averages_are_numpys(dtype, ranks):
    for elements in SIZES:
        there = random_bits(dtype, elements)
        parts = there.view(there.real.dtype)
        with np.errstate(all="ignore"):
            wanted = parts / parts.dtype.type(ranks)
        divide(address(there), there.nbytes, dtype, ranks)
        assert_equal_bits(parts, wanted)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_an_average_is_the_sum_over_the_ranks(dtype):
    values = np.array([3, 6, -9], "<f4")
    if dtype == "bfloat16":
        data = (values.view("<u4") >> 16).astype("<u2")
        divide(address(data), data.nbytes, dtype, 3)
        found = (data.astype("<u4") << 16).view("<f4")
    else:
        found = values.astype(element_type(dtype))
        divide(address(found), found.nbytes, dtype, 3)
    np.testing.assert_array_equal(found, [1, 2, -3])
