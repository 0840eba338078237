"""Reductions of elements in place: which there are, and sums and extremes against numpy."""

import numpy as np
import pytest

from harp._cnet import ffi, lib
from tests.cnet.lightcc.arrays import pointer

pytestmark = pytest.mark.usefixtures("form")
TYPES = {"INT32": np.int32, "UINT8": np.uint8, "FLOAT32": np.float32, "FLOAT64": np.float64}
NUMPYS = {"SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum}


def found(element, reduction):
    return lib.harp_reduce_find(getattr(lib, f"HARP_ELEMENT_{element}"),
                                getattr(lib, f"HARP_REDUCTION_{reduction}"))


@pytest.mark.parametrize("reduction", NUMPYS)
@pytest.mark.parametrize("element", TYPES)
def test_what_came_is_reduced_into_what_is_there(element, reduction):
    random = np.random.default_rng(3)
    for n in (0, 1, 15, 257):
        there, came = (random.integers(0, 200, n).astype(TYPES[element]) for _ in range(2))
        with np.errstate(over="ignore"):
            wanted = NUMPYS[reduction](there, came)
        kept = came.copy()
        found(element, reduction)(pointer(there, "uint8_t"), pointer(came, "uint8_t"),
                                  there.nbytes)
        assert (there == wanted).all()
        assert (came == kept).all()


def test_what_a_type_has_not_is_null():
    for name in ("MIN", "MAX", "BAND"):
        assert found("COMPLEX64", name) == ffi.NULL
        assert (found("FLOAT32", name) == ffi.NULL) == (name == "BAND")
    for element, has in (("INT32", False), ("FLOAT32", True), ("COMPLEX128", True)):
        average = lib.harp_average_find(getattr(lib, f"HARP_ELEMENT_{element}"))
        assert (average != ffi.NULL) == has


def test_an_average_divides_by_the_ranks():
    values = np.arange(100, dtype=np.float32)
    lib.harp_average_find(lib.HARP_ELEMENT_FLOAT32)(pointer(values, "uint8_t"), values.nbytes, 4)
    assert (values == np.arange(100) / 4).all()
