"""Element types of collectives, and what combines two of them.

Reductions are C's (`cnet/lightcc/reduce.h`) and work in place on bytes, so that memory of numpy,
torch or anything else is good for them. Averages are sums that are divided in the end; those of
integers are not defined, as in NCCL's and torch's reference for gloo.
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
"""What they are where elements are true or false, in bytes of 1 and 0."""
_C_TYPES = {"bool": "uint8"}


def combination(dtype: str, reduction: str) -> Any:
    """Give the C function (``harp_reduce``) that puts elements that came into those there.

    Raises:
        ValueError: an unknown type or reduction, or one that the type does not have.

    """
    kind = element_type(dtype)
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
    named = "sum" if reduction == "avg" else reduction
    if dtype == "bool":
        named = _OF_BOOL.get(named, named)
    found = lib.harp_reduce_find(
        getattr(lib, f"HARP_ELEMENT_{_C_TYPES.get(dtype, dtype).upper()}"),
        getattr(lib, f"HARP_REDUCTION_{named.upper()}"))
    is_float = kind.kind in "fc" or dtype == "bfloat16"
    if found == ffi.NULL or (reduction == "avg" and not is_float):
        raise ValueError(f"elements of type {dtype} have no reduction {reduction!r}")
    return found


def element_type(dtype: str) -> np.dtype[Any]:
    """How numpy sees the bytes of a type. Raises ValueError for one that is not known."""
    if dtype not in TYPES:
        raise ValueError(f"elements of type {dtype} cannot be sent; there are {', '.join(TYPES)}")
    return TYPES[dtype]


def divide(data: Bytes, dtype: str, ranks: int) -> None:
    """Make an average out of a sum, in place."""
    if dtype == "bfloat16":
        words = data.view(np.uint16)
        words[:] = _narrow(_wide(words) / np.float32(ranks))
        return
    values = data.view(TYPES[dtype])
    values /= values.dtype.type(ranks)


def _wide(words: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (words.astype(np.uint32) << 16).view(np.float32)


def _narrow(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even; a NaN stays one."""
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
