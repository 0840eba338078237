"""Rows of float32 tensors by index, in C (`cnet/lightcc/rows.h`)."""

from __future__ import annotations

from typing import Any

import torch

from harp._cnet import ffi, lib


def _at(tensor: torch.Tensor | None, kind: str = "float *") -> Any:
    if tensor is None:
        return ffi.NULL
    wanted = torch.int64 if kind.startswith("int64") else torch.float32
    if tensor.dtype is not wanted or not tensor.is_cpu:
        raise TypeError(f"a tensor of {tensor.dtype} on {tensor.device}; allowed is {wanted} on "
                        "the CPU")
    assert tensor.is_contiguous()
    return ffi.cast(kind, tensor.data_ptr())


def take_rows(table: torch.Tensor, index: torch.Tensor,
              weights: torch.Tensor | None = None) -> torch.Tensor:
    """Return ``table[index]``, each row times its weight."""
    found = table.new_empty(len(index), table.shape[1])
    lib.harp_rows_take(_at(found), _at(table), _at(index, "int64_t *"), _at(weights),
                       len(index), table.shape[1])
    return found


def add_rows(total: torch.Tensor, given: torch.Tensor, index: torch.Tensor,
             weights: torch.Tensor | None = None) -> torch.Tensor:
    """Add the given rows, each times its weight, to those of a table, and return it."""
    lib.harp_rows_add(_at(total), _at(given), _at(index, "int64_t *"), _at(weights),
                      len(index), given.shape[1])
    return total


def dot_rows(table: torch.Tensor, other: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return the products of ``table[index]`` and ``other``, row by row."""
    found = other.new_empty(len(index))
    lib.harp_rows_dot(_at(found), _at(table), _at(other), _at(index, "int64_t *"),
                      len(index), other.shape[1])
    return found
