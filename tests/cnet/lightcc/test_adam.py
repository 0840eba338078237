"""A step of Adam in C, against its formulas in float64."""

import numpy as np
import pytest

from harp._cnet import ffi, lib
from tests.cnet.lightcc.arrays import pointer

pytestmark = pytest.mark.usefixtures("form")
N = 1000 + 13
RATE, BETA1, BETA2, EPSILON, DECAY = 1e-2, 0.9, 0.999, 1e-8, 0.1


def rule(step, *, decoupled):
    return ffi.new("struct harp_adam *", {
        "rate": RATE / (1 - BETA1**step), "keep": 1 - RATE * DECAY if decoupled else 1,
        "decay": 0 if decoupled else DECAY, "beta1_rest": 1 - BETA1, "beta2": BETA2,
        "beta2_rest": 1 - BETA2, "root_correction": (1 - BETA2**step) ** 0.5, "epsilon": EPSILON,
        "scale": 1.0})


def step(state, gradients, how, part=slice(0, N)):
    arrays = [array[part] for array in state]
    lib.harp_adam_step(*(pointer(array, "float") for array in arrays),
                       pointer(gradients[part], "uint8_t"), ffi.NULL, len(arrays[0]),
                       lib.HARP_ELEMENT_FLOAT32, how)


def by_formula(state, gradients, number, *, decoupled):
    """Kingma and Ba, algorithm 1; with decoupled decay Loshchilov and Hutter, algorithm 2."""
    master, mean, square = (array.astype(np.float64) for array in state)
    slope = gradients.astype(np.float64) + (0 if decoupled else DECAY * master)
    mean = BETA1 * mean + (1 - BETA1) * slope
    square = BETA2 * square + (1 - BETA2) * slope**2
    change = mean / (1 - BETA1**number) / (np.sqrt(square / (1 - BETA2**number)) + EPSILON)
    return master * (1 - RATE * DECAY if decoupled else 1) - RATE * change, mean, square


@pytest.mark.parametrize("decoupled", [False, True])
def test_steps_follow_the_formulas_and_parts_give_the_same_bits(decoupled):
    random = np.random.default_rng(2)
    state = [random.normal(size=N).astype(np.float32), *np.zeros((2, N), np.float32)]
    cut = [array.copy() for array in state]
    for number in range(1, 4):
        gradients = random.normal(size=N).astype(np.float32)
        wanted = by_formula(state, gradients, number, decoupled=decoupled)
        how = rule(number, decoupled=decoupled)
        step(state, gradients, how)
        for first, last in ((0, 1), (1, 500), (500, N)):
            step(cut, gradients, how, slice(first, last))
        for got, same, exact in zip(state, cut, wanted, strict=True):
            assert got == pytest.approx(exact, rel=1e-5, abs=1e-6)
            assert got.tobytes() == same.tobytes()
