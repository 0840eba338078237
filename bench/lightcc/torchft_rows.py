"""Rows of the subject ``outer``: DiLoCo of torchft, two replicas over LightCC beside gloo.

A figure is the time of a round without inner steps (torchft_rank.py), over a line of 100 Mb/s and
40 ms: the quorum, the average of 28 MB of differences, the decision to commit. Both backends may
average by parameter, which is torchft's default, or by its buckets; the better counts. LightCC goes
over kernel TCP, as gloo does. A whole average takes 2.3 s on the line, whoever sends it.

Rows sim-torchft are the simulator's, from torchft.yaml and the measured costs of the host, and one
round trip more, since the quorum is a call to the lighthouse, which is on one of the hosts, and an
answer (torchft 0.2.0, src/lighthouse.rs); whether to commit a replica asks itself.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.arms import Sample
from bench.comparison import ArmRow
from bench.lightcc.far_hosts import DEVICE, far_hosts
from bench.lightcc.host_costs import costs_of_kernels
from bench.lightcc.lightcc_rows import Ranks, free_port, module, popen, simulated, torch_ranks
from bench.lightcc.text_model import trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.arms import Bench
    from bench.comparison import Arms
    from bench.lightcc.far_hosts import FarHost

SCENARIO = Path(__file__).with_name("torchft.yaml")
PATIENCE_S = 300.0
RATE_BPS, ROUND_TRIP_S = 100e6, 0.04
"""Of the line, as in torchft.yaml."""
ARMS = {"gloo": ("gloo", 32), "LightCC": ("lightcc", 32), "LightCC int8": ("lightcc", 8)}
"""Backends, and bits of a value that is sent."""
SCENARIOS = {"gloo": "whole", "LightCC": "whole", "LightCC int8": "int8"}
"""Scenario of torchft.yaml for each."""


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


class Predictions:
    """The simulator's rounds, of costs that plain ranks measure where the replicas are."""

    def __init__(self, hosts: tuple[FarHost, FarHost]) -> None:
        self._ranks = torch_ranks([host.space for host in hosts], hosts[0].address,
                                  GLOO_SOCKET_IFNAME=DEVICE, HARP_IFNAME=DEVICE)
        self._known: dict[str, float] = {}

    def of(self, arm: str) -> Callable[[], Sample]:
        """Give the seconds of a round."""
        def take() -> Sample:
            if arm not in self._known:
                rounds_s = self._simulate()
                self._known = {name: rounds_s[scenario] for name, scenario in SCENARIOS.items()}
            return Sample(self._known.pop(arm))
        return take

    def _simulate(self) -> dict[str, float]:
        costs = costs_of_kernels(self._ranks.ask)
        with tempfile.TemporaryDirectory() as folder:
            rounds = simulated([*costs, trace(folder)], SCENARIO)
        return {name: 1 / a_second + ROUND_TRIP_S for name, a_second in rounds.items()}


@contextmanager
def torchft_line(_: Bench) -> Iterator[Arms]:
    """Make the group of the line."""
    with far_hosts(RATE_BPS, ROUND_TRIP_S) as hosts:
        predictions = Predictions(hosts)
        arms: Arms = {f"sim, {name}": predictions.of(name) for name in ARMS}
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
    for id_, name in (("torchft", "LightCC int8"), ("torchft-whole", "LightCC"),
                      ("torchft-gloo", "gloo")):
        yield ArmRow(f"sim-{id_}", f"simulated {name}, a round of torchft", torchft_line,
                     f"sim, {name}", unit="s", against=(f"{name}, buckets",), within=0.15)
