"""Collectives that repeat themselves: the mean time of those before instead of all their packets.

A training step runs the same collectives many times, one for each bucket of a layer. Collectives
that begin at one moment are a *batch*; batches of the same plans on the same GPUs are of one
*kind*. A batch is *alone* if no other that shares a link, switch, server or process with it is
under way while it is: nothing outside it then bears on it but what sessions have learned. Times of
a kind that is always alone scatter around a mean. The first `FIRST` are simulated, all that begin
before the network has worked for `WARM_S`, and more until the standard error of the mean of the
last `EVERY` is at most `ERROR` of it. From then on a batch takes that mean, but for each
`EVERY`-th, which is simulated and counts for it, so that a change is seen. Where
packets collide times scatter more, and more is simulated. All is simulated once a packet was lost,
since losses fall otherwise where times are shifted, and of a kind that was not alone once.

The network's clock stands while nothing but such batches is under way, so that sessions are not
idle for longer than they would be. The idea is that of memoization in Long et al., NSDI 2026
("Wormhole"), there for patterns of flows and here for whole collectives, which a plan names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable

    import simpy

    Uses = frozenset[Hashable] | None

FIRST = 4
"""Assumed: fewer agree by chance where times scatter."""
ERROR = 0.003
"""Assumed: a third of a hundredth, so that three standard errors stay within one."""
EVERY = 8
"""Assumed: a step of 40 layers has five to see a change by."""
WARM_S = 0.6
"""The longest time over which a session learns of its path (SWIFT_LONGER_PATH_COMPETING_NS of
cnet/cc/constants.h); what it has learned changes its rate, and a ring's time by 1 % and more."""


@dataclass(frozen=True)
class Took:
    """Time of one collective, and what held it back."""

    seconds: float
    limit: str | None


@dataclass
class Kind:
    """Batches of the same collectives."""

    met: int = 0
    uses: Uses = frozenset()
    """Resources that they may share with others, by name; None: anything."""
    shares: bool = False
    """Whether one was not alone."""
    took: list[tuple[Took, ...]] = field(default_factory=list)
    """Of the last `EVERY` that were simulated, collective by collective."""

    @property
    def is_known(self) -> bool:
        """Whether the batch that begins need not be simulated."""
        return (not self.shares and self.met % EVERY != 0 and len(self.took) >= FIRST
                and self.error <= ERROR)

    @property
    def error(self) -> float:
        """Standard error of the mean time, as a share of it."""
        longest_s = [max(one.seconds for one in batch) for batch in self.took]
        mean = fmean(longest_s)
        return stdev(longest_s, mean) / len(longest_s) ** 0.5 / mean if mean else 0.0

    def mean(self, number: int) -> Took:
        """Of one of its collectives."""
        mine = [batch[number] for batch in self.took]
        return Took(fmean(one.seconds for one in mine), mine[-1].limit)


@dataclass(eq=False)
class Batch:
    """Collectives that began at one moment."""

    begin_s: float
    keys: list[Hashable] = field(default_factory=list)
    kind: Kind = field(default_factory=Kind)
    is_known: bool = False
    took: dict[int, Took] = field(default_factory=dict)
    """By number, of those that are done."""


class Repeats:
    """All batches of a network.

    Args:
        env: the simpy environment.
        stand: lets the network's clock stand for these seconds, which were the last.
        lost: gives the packets that were lost so far.
    """

    def __init__(self, env: simpy.Environment, stand: Callable[[float], None],
                 lost: Callable[[], int]) -> None:
        self._env, self._stand, self._lost = env, stand, lost
        self._kinds: dict[tuple[Hashable, ...], Kind] = {}
        self._gathering: Batch | None = None
        self._open: list[Batch] = []
        self._since_s = 0.0
        self._met = self._known = self._overtaken = 0
        self._worked_s = self._error = 0.0

    def join(self, key: Hashable) -> Generator[simpy.Event, None, tuple[Batch, int]]:
        """Begin a collective; returns its batch and its number there once the batch is whole.

        Args:
            key: the same for collectives that do the same.
        """
        if self._gathering is None:
            self._gathering = Batch(self._env.now)
        batch, number = self._gathering, len(self._gathering.keys)
        batch.keys.append(key)
        yield self._env.timeout(0)  # all that begin now have joined before it is over
        if batch is self._gathering:
            self._gathering = None
            self._begin(batch)
        return batch, number

    def _begin(self, batch: Batch) -> None:
        self._account()
        kind = batch.kind = self._kinds.setdefault(tuple(batch.keys), Kind())
        kind.met += 1
        self._open.append(batch)
        self._compare(batch)
        batch.is_known = self._worked_s >= WARM_S and kind.is_known and not self._lost()
        self._met += len(batch.keys)
        if batch.is_known:
            self._known += len(batch.keys)
            self._error = max(self._error, kind.error)

    def use(self, batch: Batch, uses: Uses) -> None:
        """Say what a collective of a batch that is simulated may share with others."""
        kind = batch.kind
        if kind.uses is None or (uses is not None and uses <= kind.uses):
            return
        kind.uses = None if uses is None else kind.uses | uses
        self._compare(batch)

    def _compare(self, batch: Batch) -> None:
        """Find out whether a batch is alone."""
        for other in self._open:
            one, two = batch.kind, other.kind
            if other is not batch and (one.uses is None or two.uses is None
                                       or one.uses & two.uses):
                one.shares = two.shares = True
                self._overtaken += other.is_known

    @property
    def notes(self) -> list[str]:
        """A note on what was not simulated, and the error that this leaves."""
        notes = [f"{self._known:,} of {self._met:,} collectives take the mean time of those before "
                 "them that did the same alone, whose standard error is at most "
                 f"{self._error:.2%}; the others are simulated."]
        if self._overtaken:
            notes.append(f"{self._overtaken:,} times a collective began beside one that was taken "
                         "to be alone.")
        return notes

    def end(self, batch: Batch, number: int, took: Took) -> None:
        """End a collective of a batch."""
        batch.took[number] = took
        if len(batch.took) < len(batch.keys):
            return
        self._account()
        self._open.remove(batch)
        if batch.is_known:
            return
        whole = tuple(batch.took[at] for at in range(len(batch.keys)))
        batch.kind.took = [*batch.kind.took, whole][-EVERY:]

    def _account(self) -> None:
        """Let the network's clock stand for the time in which nothing was simulated."""
        passed_s = self._env.now - self._since_s
        self._since_s = self._env.now
        if not self._open:
            return
        if all(batch.is_known for batch in self._open):
            self._stand(passed_s)
        else:
            self._worked_s += passed_s
