"""Logs in the formats of nccl-tests, made from given times."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIZES = [8 * 2**k for k in range(28)]
_RULE = "#\n#" + " " * 62 + "out-of-place                       in-place\n"
_HEADERS = {
    "new": "#       size         count      type   redop    root     time   algbw   busbw #wrong"
           "     time   algbw   busbw #wrong\n",
    "old": "#       size         count      type   redop     time   algbw   busbw  error"
           "     time   algbw   busbw  error\n",
}
_UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n"


def ring_time(alpha_s: float, beta_s: float, *, ranks: int,
              hosts: int | None = None) -> Callable[[int], float]:
    """Time of NCCL's ring all-reduce at ``alpha_s`` a hop between hosts, nothing a hop within one.

    A byte that a host sends takes ``beta_s``. A message crosses to the next host once for each
    host that it passes; what is longer than a slot of 512 KiB goes in pieces that hide that.
    """
    steps, local = 2 * (ranks - 1), ranks // (hosts or ranks)

    def time_s(size: int) -> float:
        message = size / ranks
        loops = max(1, ceil(message / (2 << 20)))
        pieces = max(1, ceil(message / loops / (512 << 10)))
        step_s = message * beta_s / loops
        around_s = ceil(steps * loops / local) * (alpha_s + step_s / pieces)
        return max(alpha_s + steps * loops * step_s, around_s + step_s * (1 - 1 / pieces))

    return time_s


def nccl_log(time_s: Callable[[int], float], hosts: Sequence[str], *, sizes: Sequence[int] = SIZES,
             noise: float = 0.0, seed: int = 0, layout: str = "new", chatter: bool = False) -> str:
    """A log of all_reduce_perf with one rank for each name in ``hosts``.

    Args:
        time_s: time of a size in bytes.
        hosts: host of each rank.
        sizes: bytes of each row.
        noise: standard deviation of the times' relative error.
        seed: seed of that error.
        layout: new (with root and #wrong) or old.
        chatter: whether NCCL and mpirun talk in between.

    """
    random = np.random.default_rng(seed)
    ranks = len(hosts)
    text = "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5\n"
    text += "#\n# Using devices\n"
    group = "" if layout == "old" else " Group  0"
    for rank, host in enumerate(hosts):
        text += f"#  Rank {rank:2d}{group} Pid {4000 + rank:6d} on {host:>10} "
        text += "device  0 [0x07] V100\n"
    if chatter:
        text += f"{hosts[0]}:4000:4011 [0] NCCL INFO comm 0x7f rank 0 nranks {ranks} - Init\n"
    text += _RULE + _HEADERS[layout] + _UNITS
    root, right = ("", "0e+00") if layout == "old" else ("     -1", "     0")
    for size in sizes:
        halves = [half(size, time_s(size) * (1 + noise * random.standard_normal()), ranks)
                  for _ in range(2)]
        text += (f"{size:12d} {size // 4:13d}     float     sum{root}  {halves[0]} {right} "
                 f" {halves[1]} {right}\n")
        if chatter and size == sizes[0]:
            text += "[node-0:04000] 15 more processes have sent help message help-mpi.txt\n"
    return text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.51\n#\n"


def half(size: int, time_s: float, ranks: int) -> str:
    """Time, algbw and busbw as nccl-tests prints them."""
    time_us = time_s * 1e6
    digits = 0 if time_us >= 10000 else 1 if time_us >= 100 else 2
    algbw = size / time_us / 1e3
    return f"{time_us:7.{digits}f} {algbw:7.2f} {algbw * 2 * (ranks - 1) / ranks:7.2f}"
