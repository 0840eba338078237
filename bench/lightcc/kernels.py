"""LightCC's loops on one core: a process that obeys commands as torch_rank.py does."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from harp._cnet import ffi, lib
from harp.lightcc import few_bits
from harp.lightcc.elements import combination
from harp.lightcc.outer import sparse
from harp.lightcc.outer_policy import OuterPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

ELEMENTS, KEPT, PAIR_BYTES = 25_000_000, 250_000, 8


def topk() -> Callable[[], object]:
    """Select with error feedback, as a step does it."""
    values = np.random.default_rng(1).normal(size=ELEMENTS).astype("<f4")
    error, pairs = np.zeros_like(values), np.empty(KEPT * PAIR_BYTES, np.uint8)
    given = (ffi.from_buffer("float[]", values), ffi.from_buffer("float[]", error), ELEMENTS,
             ffi.from_buffer("uint8_t[]", pairs), KEPT, PAIR_BYTES)
    return lambda: lib.harp_topk_select(*given)


def torch_topk() -> Callable[[], object]:
    """Torch's selection: without the sum, the magnitudes and the pairs."""
    values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1))
    return lambda: torch.topk(values, KEPT, sorted=False)


def total() -> Callable[[], object]:
    """Add 100 MB of float32 to others."""
    there, came = (np.ones(ELEMENTS, "<f4") for _ in range(2))
    add = combination("float32", "sum")
    given = (ffi.from_buffer("uint8_t[]", there), ffi.from_buffer("uint8_t[]", came), 4 * ELEMENTS)
    return lambda: add(*given)


def quantise(bits: int) -> Callable[[], object]:
    """Write values with what was lost before in few bits, and add what that says to a sum."""
    values = np.random.default_rng(1).normal(size=ELEMENTS).astype("<f4")
    error, total = np.zeros_like(values), np.zeros_like(values)
    message = np.empty(few_bits.message_bytes(ELEMENTS, bits), np.uint8)

    def both() -> None:
        few_bits.take(values, error, message, bits)
        few_bits.add(total, message, bits)
    return both


def chunk_topk() -> Callable[[], object]:
    """Select 1 of 64 in each chunk, in 2 bits, as SparseLoCo does, and put it back."""
    policy = OuterPolicy("sparseloco", every=30, keep=64, chunk=4096)
    values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1))
    return lambda: sparse.add(sparse.take(values, policy), values, policy)


def exact_topk() -> Callable[[], object]:
    """Select 1 of 64 of all, exactly."""
    values = np.random.default_rng(1).normal(size=ELEMENTS).astype("<f4")
    kept = ELEMENTS // 64
    error, pairs = np.zeros_like(values), np.empty(kept * PAIR_BYTES, np.uint8)
    given = (ffi.from_buffer("float[]", values), ffi.from_buffer("float[]", error), ELEMENTS,
             ffi.from_buffer("uint8_t[]", pairs), kept, PAIR_BYTES)
    return lambda: lib.harp_topk_select(*given)


def main() -> None:
    """Answer until stdin ends."""
    torch.set_num_threads(1)
    makers: dict[str, Callable[[], Callable[[], object]]] = {
        "topk": topk, "torch_topk": torch_topk, "total": total, "chunk_topk": chunk_topk,
        "exact_topk": exact_topk,
        **{f"quant_{bits}": partial(quantise, bits) for bits in few_bits.BITS}}
    work: dict[str, Callable[[], object]] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        if what["do"] not in work:
            work[what["do"]] = makers[what["do"]]()
        work[what["do"]]()
        begun, times = time.perf_counter(), 0
        while time.perf_counter() - begun < what["seconds"] / 2:
            work[what["do"]]()
            times += 1
        print(json.dumps({"seconds": time.perf_counter() - begun, "times": times}), flush=True)


if __name__ == "__main__":
    main()
