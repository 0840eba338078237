"""Tests of LightCC's loops in every form that this CPU runs."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harp._cnet import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterator


def kernel_names() -> list[str]:
    """Give the forms, the one that is chosen at the start last."""
    names = map(lib.harp_kernels_name, itertools.count())
    return [ffi.string(name).decode() for name in itertools.takewhile(bool, names)]


@contextmanager
def kernels(name: str) -> Iterator[None]:
    """Have one form used for a while."""
    names = kernel_names()
    lib.harp_kernels_use(names.index(name))
    try:
        yield
    finally:
        lib.harp_kernels_use(len(names) - 1)
