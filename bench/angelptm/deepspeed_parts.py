"""DeepSpeed's optimizer, and its reads and writes of pages: run by its own Python.

    python -m bench.angelptm.deepspeed_parts adam SECONDS
    python -m bench.angelptm.deepspeed_parts read|write SECONDS FOLDER AIO

It prints a JSON of the seconds of a step, or of a round over all pages. AIO is the object that
DeepSpeed's tuner gave. Its handle waits for all that is under way, not for one page.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import torch

from bench.angelptm.sizes import PAGE_BYTES, PAGES, PARAMETERS, UNDER_WAY

if TYPE_CHECKING:
    from collections.abc import Callable


def adam() -> Callable[[], object]:
    """A step of its optimizer: the loop is compiled at the first use."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    masters, gradients = (torch.randn(PARAMETERS, generator=generator) * 0.01 for _ in range(2))
    parameter = torch.nn.Parameter(masters)
    parameter.grad = gradients
    step: Callable[[], object] = DeepSpeedCPUAdam([parameter], adamw_mode=True).step
    return step


def pages(name: str, aio: dict[str, int | bool], *, write: bool) -> Callable[[], object]:
    """A round over a file of pages, which it writes first: else there is nothing to read."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    handle = AsyncIOBuilder().load().aio_handle(**aio)
    memory = [handle.new_cpu_locked_tensor(PAGE_BYTES, torch.empty(0, dtype=torch.uint8))
              for _ in range(UNDER_WAY)]
    for one in memory:
        one.fill_(1)

    def go_round(move: Callable[[torch.Tensor, str, int], int]) -> None:
        for begin in range(0, PAGES, UNDER_WAY):
            for page, one in enumerate(memory, begin):
                move(one, name, page * PAGE_BYTES)
            handle.wait()

    go_round(handle.async_pwrite)
    return lambda: go_round(handle.async_pwrite if write else handle.async_pread)


def seconds_of(work: Callable[[], object], least_s: float) -> float:
    """Give the seconds of one, after one that warms up."""
    work()
    begun, times = time.perf_counter(), 0
    while time.perf_counter() - begun < least_s:
        work()
        times += 1
    return (time.perf_counter() - begun) / times


def main() -> None:
    """Measure one."""
    what, least_s, *where = sys.argv[1:]
    if what == "adam":
        found = seconds_of(adam(), float(least_s))
    else:
        with tempfile.NamedTemporaryFile(dir=where[0]) as file:
            found = seconds_of(pages(file.name, json.loads(where[1]), write=what == "write"),
                               float(least_s))
    print(json.dumps({"seconds": found}), flush=True)
    os._exit(0)  # DeepSpeed's threads run on after its last line


if __name__ == "__main__":
    main()
