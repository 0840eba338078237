"""Rows of the subject ``outer``: DiLoCo of torchft, two replicas over LightCC beside gloo.

A figure is the time of a round without inner steps (torchft_rank.py), over a line of 100 Mb/s and
40 ms: the quorum, the average of 28 MB of differences, the decision to commit. Both backends may
average by parameter, which is torchft's default, or by its buckets; the better counts. LightCC goes
over kernel TCP, as gloo does. A whole average takes 2.3 s on the line, whoever sends it.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.arms import Sample
from bench.comparison import ArmRow
from bench.lightcc.far_hosts import DEVICE, far_hosts
from bench.lightcc.lightcc_rows import Ranks, free_port, module, popen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.arms import Bench
    from bench.comparison import Arms
    from bench.lightcc.far_hosts import FarHost

PATIENCE_S = 300.0
ARMS = {"gloo": ("gloo", 32), "LightCC": ("lightcc", 32), "LightCC int8": ("lightcc", 8)}
"""Backends, and bits of a value that is sent."""


def is_there() -> bool:
    """Whether torchft is installed."""
    return importlib.util.find_spec("torchft") is not None


def replicas(hosts: tuple[FarHost, FarHost], name: str) -> Ranks:
    """Start a replica on each host, with a lighthouse of their own."""
    first, (backend, bits) = hosts[0], ARMS[name]
    port = free_port(first.space, first.address)
    return Ranks([popen(host.space, sys.executable, *module("torchft_rank"), backend, str(bits),
                        str(number), host.address, first.address, str(port), HARP_IFNAME=DEVICE,
                        GLOO_SOCKET_IFNAME=DEVICE, HARP_PORT="tcp", OMP_NUM_THREADS=1)
                  for number, host in enumerate(hosts)])


def round_of(made: Ranks, *, buckets: bool) -> Callable[[], Sample]:
    """Measure a round."""
    def take() -> Sample:
        answers = made.ask(do="meet", buckets=buckets, patience_s=PATIENCE_S)
        return Sample(max(answer["seconds"] for answer in answers))
    return take


@contextmanager
def torchft_line(_: Bench) -> Iterator[Arms]:
    """Make the group of the line."""
    with far_hosts(100e6, 0.04) as hosts:
        arms: Arms = {}
        for name in ARMS:
            made = replicas(hosts, name)
            round_of(made, buckets=True)()  # the first one makes the process group
            arms[name] = round_of(made, buckets=False)
            arms[f"{name}, buckets"] = round_of(made, buckets=True)
        yield arms


def rows() -> Iterator[ArmRow]:
    """Give a row for whole values, and one for few bits."""
    where = "DiLoCo of torchft, 100 Mb/s, 40 ms"
    for id_, name, what, target in (
            ("torchft", "LightCC int8", f"a round, {where}, int8", 0.5),
            ("torchft-whole", "LightCC", f"a round, {where}", 0.0)):
        yield ArmRow(id_, what, torchft_line, name, (f"{name}, buckets",), unit="s",
                     against=("gloo", "gloo, buckets"), lower=True, target=target)
