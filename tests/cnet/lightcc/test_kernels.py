"""The forms of LightCC's loops: which there are, and that they give the same bits."""

import numpy as np
import pytest

from harp._cnet import ffi, lib
from tests.cnet.lightcc.arrays import pointer
from tests.harp.lightcc.every_kernel import kernel_names, kernels

FORMS = ["portable", "avx2", "avx512"]
N = 4096 + 37


def test_this_cpu_runs_the_portable_form_and_faster_ones_after_it():
    names = kernel_names()
    assert names == [name for name in FORMS if name in names]
    assert names[0] == "portable"
    assert lib.harp_kernels_name(len(names)) == ffi.NULL


def outcome(bits):
    """Give results of some loops for numbers of all sizes."""
    random = np.random.default_rng(1)
    values, rest = (random.normal(size=N) * 10.0 ** random.integers(-30, 30, N)
                    for _ in range(2))
    values, rest = values.astype(np.float32), rest.astype(np.float32)
    message = np.zeros(lib.harp_bits_bytes(N, bits), np.uint8)
    lib.harp_bits_take(pointer(values, "float"), pointer(rest, "float"), N,
                       pointer(message, "uint8_t"), bits, 7)
    index = random.permutation(N // 64).astype(np.int64)
    rows, dots = np.zeros_like(values), np.zeros(len(index), np.float32)
    lib.harp_rows_take(pointer(rows, "float"), pointer(values, "float"), pointer(index, "int64_t"),
                       ffi.NULL, len(index), 64)
    lib.harp_rows_dot(pointer(dots, "float"), pointer(rows, "float"), pointer(values, "float"),
                      pointer(index, "int64_t"), len(index), 64)
    return [array.tobytes() for array in (message, rest, rows, dots)]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_all_forms_give_the_same_bits(bits):
    found = []
    for name in kernel_names():
        with kernels(name):
            found.append(outcome(bits))
    assert all(other == found[0] for other in found)
