"""Search for NCCL's fastest algorithm, protocol and channels at each size, by simulation.

At each size of a grid every algorithm and protocol of NCCL runs with NCCL's number of channels and
with fewer. A choice counts if it is `LEAST_GAIN` times faster than NCCL's own at that size. At
other sizes the table has no row, so that NCCL keeps what the simulator does not model
(CollNet, PAT). Between two sizes with different choices the limit is searched by halving.

`make_table` also makes a table of measured times.
"""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harp.collectives.tuning import Communicator, Row
from sim.answer.collective_bench import UNIT_BYTES
from sim.answer.scenario import Settings
from sim.answer.timer import Timer
from sim.cluster.placement import choose_gpus, common_group, place
from sim.network.nccl import NCCL_NAMES, PLANS, Choice, View, choices, choose, chosen_plan
from sim.schema.nccl_defaults import channel_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sim.answer.progress import Advance
    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario

    Seconds = Callable[[Choice, int], float]

LEAST_GAIN = 1.02
"""Gain below which a row is not worth the risk of an error of the simulator."""
ALIKE = 1.01
"""Ratio within which the choice of the size before is kept, for fewer rows."""
HALVINGS = 3
"""Halvings of the stretch between two sizes with different choices."""


@dataclass(frozen=True)
class Size:
    """Result at one size: NCCL's own choice, the best one, and their times."""

    nbytes: int
    own: Choice
    own_s: float
    best: Choice | None
    """None: NCCL's own."""
    best_s: float

    @property
    def gain(self) -> float:
        """Speed-up over NCCL's own choice."""
        return self.own_s / self.best_s


@dataclass(frozen=True)
class Tuned:
    """Rows for one communicator, and the sizes from which they were made."""

    communicator: Communicator
    sizes: Mapping[str, Sequence[Size]]
    """Of each collective, by our names."""
    tried: int
    """Pairs of size and collective that were simulated within the budget, out of ``of``."""
    of: int


class Bench:
    """Times choices of NCCL on an idle cluster."""

    def __init__(self, cluster: Cluster, scenario: Scenario, stack: str | None = None) -> None:
        self._cluster, self._scenario = cluster, scenario
        self._stack = Settings().stack(cluster.topology, stack or scenario.stack)
        gpus = choose_gpus(cluster, range(cluster.hosts), cluster.gpus, affinity=scenario.affinity)
        self._placement = place(cluster, gpus, channel_count(cluster.topology, scenario),
                                affinity=scenario.affinity)
        self._group = common_group(cluster, gpus)
        self.view = View.of(cluster, scenario, gpus)
        self._timer: Timer | None = None

    def seconds(self, choice: Choice, nbytes: int) -> float:
        """Simulate one run; bursts of a VPC are full when it begins."""
        timer = self._timer or Timer(self._cluster, self._stack, self._scenario, self._placement)
        plan = chosen_plan(choice, self.view.ranks, nbytes, unit_bytes=UNIT_BYTES,
                           group=self._group)
        found = timer.seconds(plan, choice.protocol, choice.channels)
        self._timer = timer
        if timer.network.remembers:
            self.close()
        return found

    def close(self) -> None:
        """Give back what the network holds."""
        if self._timer is not None:
            self._timer.close()
        self._timer = None


def tune(cluster: Cluster, scenario: Scenario, sizes: Sequence[int], budget_s: float,
         advance: Advance, stack: str | None = None) -> Tuned:
    """Simulate until all sizes are done or the budget is spent; sizes far apart come first.

    At least two sizes of each collective are simulated, whatever the budget.
    """
    bench, began_s = Bench(cluster, scenario, stack), time.monotonic()
    found: dict[str, list[Size]] = {collective: [] for collective in PLANS}
    with closing(bench):
        for number, nbytes in enumerate(_spread(sizes)):
            if number > 1 and time.monotonic() - began_s > budget_s:
                break
            for collective, some in found.items():
                advance(0, f"{collective}, {nbytes} B")
                some.append(_try_size(bench, collective, nbytes))
                advance()
        for some in found.values():
            some.sort(key=lambda size: size.nbytes)
        kept = {collective: _keep_choices(some, bench) for collective, some in found.items()}
        rows = tuple(row for collective, some in kept.items()
                     for row in make_table(collective, bench.view, some, bench.seconds))
    tried = sum(map(len, kept.values()))
    return Tuned(Communicator(bench.view.ranks, bench.view.hosts, rows), kept, tried,
                 len(sizes) * len(kept))


def _spread(sizes: Sequence[int]) -> Iterator[int]:
    """Both ends, then the middle of each remaining stretch."""
    stretches = [(0, len(sizes) - 1)]
    yield from dict.fromkeys((sizes[0], sizes[-1]))
    while stretches:
        first, last = stretches.pop(0)
        middle = (first + last) // 2
        if first < middle < last:
            yield sizes[middle]
            stretches += [(first, middle), (middle, last)]


def _candidates(view: View, collective: str, nbytes: int) -> Iterator[Choice]:
    """Choices of NCCL, with its own number of channels and with fewer."""
    for choice in choices(view, collective, nbytes):
        yield choice
        used = choice.protocol.channels(choice.plan, view.ranks, nbytes, view.channels)
        for power in range(used.bit_length()):
            if 1 << power < used:
                yield choice._replace(channels=1 << power)


def _try_size(bench: Bench, collective: str, nbytes: int) -> Size:
    own = choose(bench.view, collective, nbytes)
    own_s = bench.seconds(own, nbytes)
    times = {choice: bench.seconds(choice, nbytes)
             for choice in _candidates(bench.view, collective, nbytes)}
    best = min(times, key=lambda choice: times[choice])
    return _judge(nbytes, own, own_s, best, times[best])


def _judge(nbytes: int, own: Choice, own_s: float, best: Choice, best_s: float) -> Size:
    if own_s < LEAST_GAIN * best_s:
        return Size(nbytes, own, own_s, None, own_s)
    return Size(nbytes, own, own_s, best, best_s)


def _keep_choices(sizes: Sequence[Size], bench: Bench) -> list[Size]:
    """Keep a choice at the next sizes while it is as good as the best one there."""
    kept: list[Size] = []
    for size in sizes:
        before = kept[-1].best if kept else None
        if before is not None and size.best is not None and not is_same(before, size.best):
            time_s = bench.seconds(before, size.nbytes)
            if time_s < ALIKE * size.best_s and size.own_s >= LEAST_GAIN * time_s:
                kept.append(_judge(size.nbytes, size.own, size.own_s, before, time_s))
                continue
        kept.append(size)
    return kept


def is_same(one: Choice | None, other: Choice | None) -> bool:
    """Whether two choices have the same plan, protocol and channels."""
    return (one and (one.plan, one.protocol, one.channels)) == (
        other and (other.plan, other.protocol, other.channels))


def make_table(collective: str, view: View | None, sizes: Sequence[Size],
               seconds: Seconds | None = None) -> Iterator[Row]:
    """Give a row for each stretch of sizes with the same choice, from small to large.

    With ``view`` and ``seconds`` the limits between stretches are searched, else they lie in the
    geometric middle.
    """
    stretches: list[_Stretch] = []
    for size in sizes:
        if stretches and is_same(stretches[-1].choice, size.best):
            stretches[-1].sizes.append(size)
        else:
            stretches.append(_Stretch(size.best, [size]))
    least = sizes[0].nbytes if sizes else 0
    for stretch, following in zip(stretches, [*stretches[1:], None], strict=True):
        most = stretch.sizes[-1].nbytes if following is None else _limit(
            collective, view, stretch, following, seconds)
        if stretch.choice is not None:
            gain = math.exp(sum(math.log(size.gain) for size in stretch.sizes)
                            / len(stretch.sizes))
            yield Row(NCCL_NAMES[collective], least, most, stretch.choice.algorithm,
                      stretch.choice.protocol.name, stretch.choice.channels, round(gain, 3))
        least = most + 1


@dataclass
class _Stretch:
    """Neighbouring sizes with the same choice."""

    choice: Choice | None
    sizes: list[Size] = field(default_factory=list)


def _limit(collective: str, view: View | None, stretch: _Stretch, following: _Stretch,
           seconds: Seconds | None) -> int:
    """The last size of a stretch, before the first one of the next."""
    low, high = stretch.sizes[-1].nbytes, following.sizes[0].nbytes
    if view is None or seconds is None:
        return math.isqrt(low * high)
    for _ in range(HALVINGS):
        middle = math.isqrt(low * high) // UNIT_BYTES * UNIT_BYTES
        if not low < middle < high:
            break
        first, second = (seconds(side.choice or choose(view, collective, middle), middle)
                         for side in (stretch, following))
        if first <= second:
            low = middle
        else:
            high = middle
    return low
