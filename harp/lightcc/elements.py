"""Element types of collectives, and what combines two of them.

A reduction works on bytes in place, so that memory of numpy, torch or anything else is good for it.
bfloat16, which numpy has not, is added in float32 and rounded to nearest, ties to even (IEEE 754),
as torch does. Averages are sums that are divided in the end; those of integers are not defined, as
in NCCL's and torch's reference for gloo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Combine = Callable[[Bytes, Bytes], None]

TYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in (
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
        "float16", "float32", "float64", "complex64", "complex128")},
    "bfloat16": np.dtype("uint16"),
}
"""Names as torch has them, and how numpy sees their bytes."""

_ARITHMETIC: dict[str, np.ufunc] = {
    "sum": np.add, "avg": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
_BITWISE: dict[str, np.ufunc] = {
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
_OF_BOOL: dict[str, np.ufunc] = {
    "sum": np.logical_or, "max": np.logical_or, "bor": np.logical_or, "product": np.logical_and,
    "min": np.logical_and, "band": np.logical_and, "bxor": np.logical_xor}
REDUCTIONS = (*_ARITHMETIC, *_BITWISE)


def combination(dtype: str, reduction: str) -> Combine:
    """Give the function ``(there, came)`` that puts came's elements into there's.

    Raises:
        ValueError: an unknown type or reduction, or one that the type does not have.

    """
    kind = element_type(dtype)
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
    if dtype == "bfloat16" and reduction in _ARITHMETIC:
        return _bfloat16(_ARITHMETIC[reduction])
    known = _OF_BOOL if dtype == "bool" else {
        **_ARITHMETIC, **(_BITWISE if kind.kind in "iu" and dtype != "bfloat16" else {})}
    if (reduction not in known or (reduction == "avg" and kind.kind not in "fc")
            or (reduction in {"min", "max"} and kind.kind == "c")):
        raise ValueError(f"elements of type {dtype} have no reduction {reduction!r}")
    function = known[reduction]

    def combine(there: Bytes, came: Bytes) -> None:
        target = there.view(kind)
        function(target, came.view(kind), out=target)
    return combine


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


def _bfloat16(function: np.ufunc) -> Combine:
    def combine(there: Bytes, came: Bytes) -> None:
        target = there.view(np.uint16)
        target[:] = _narrow(function(_wide(target), _wide(came.view(np.uint16))))
    return combine


def _wide(words: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (words.astype(np.uint32) << 16).view(np.float32)


def _narrow(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even; a NaN stays one."""
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
