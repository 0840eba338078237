"""Element types of collectives, and their reductions.

Reductions are C's (`cnet/lightcc/reduce.h`) and work in place on bytes, so that memory of numpy,
torch or anything else is good for them. Averages are sums that are divided in the end; those of
integers are rounded towards zero, as NCCL does it (its FuncSumPostDiv).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harp._cnet import ffi, lib

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

TYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in (
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
        "float16", "float32", "float64", "complex64", "complex128")},
    "bfloat16": np.dtype("uint16"),
}
"""Names as torch has them, and how numpy sees their bytes."""

REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
_OF_BOOL = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}
"""Reductions of elements that are true or false, as operations on bytes of 1 and 0."""
_C_TYPES = {"bool": "uint8"}


def combination(dtype: str, reduction: str) -> Any:
    """Give the C function (``harp_reduce``) that puts elements that came into those there.

    Raises:
        ValueError: an unknown type or reduction, or one that the type does not have.

    """
    element_type(dtype)
    if reduction not in REDUCTIONS:
        raise ValueError(f"unknown reduction {reduction!r}; allowed are {', '.join(REDUCTIONS)}")
    named = "sum" if reduction == "avg" else reduction
    if dtype == "bool":
        named = _OF_BOOL.get(named, named)
    found = lib.harp_reduce_find(_c_element(dtype), getattr(lib, f"HARP_REDUCTION_{named.upper()}"))
    if found == ffi.NULL or (reduction == "avg" and not _has_average(dtype)):
        raise ValueError(f"elements of type {dtype} have no reduction {reduction!r}")
    return found


def element_type(dtype: str) -> np.dtype[Any]:
    """Return numpy's type for the bytes of a type. Raises ValueError for one that is not known."""
    if dtype not in TYPES:
        raise ValueError(f"elements of type {dtype} cannot be sent; allowed are {', '.join(TYPES)}")
    return TYPES[dtype]


def divide(start: int, nbytes: int, dtype: str, ranks: int) -> None:
    """Make an average out of a sum that lies at an address, in place."""
    if not _is_integer(dtype):
        lib.harp_average_find(_c_element(dtype))(ffi.cast("uint8_t *", start), nbytes, ranks)
        return
    sums = np.frombuffer(ffi.buffer(ffi.cast("char *", start), nbytes), TYPES[dtype])
    # There may be more ranks than an int8 can count.
    wide = sums if dtype == "uint64" else sums.astype(np.int64)
    below = wide // ranks
    sums[:] = below + ((below < 0) & (below * ranks != wide))


def _has_average(dtype: str) -> bool:
    return _is_integer(dtype) or lib.harp_average_find(_c_element(dtype)) != ffi.NULL


def _is_integer(dtype: str) -> bool:
    return dtype != "bfloat16" and TYPES[dtype].kind in "iu"


def move(target: int, source: int, nbytes: int) -> None:
    """Copy from one address to another."""
    ffi.memmove(ffi.cast("char *", target), ffi.cast("char *", source), nbytes)


def _c_element(dtype: str) -> int:
    return int(getattr(lib, f"HARP_ELEMENT_{_C_TYPES.get(dtype, dtype).upper()}"))
