"""Results of a simulation: plain records that every output (table, JSON, plot, trace) reads.

Times are seconds of simulated time, sizes bytes, rates bits per second unless a name says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SpanKind = Literal["forward", "backward", "update", "selection", "transfer", "latency", "message",
                   "negotiation", "bubble", "page", "launch", "fault"]


class Span(NamedTuple):
    """One bar of the timeline: what ``track`` (a GPU, a NIC, a stream or a link) did, and when.

    Tracks of one host share its name: ``gn10xp-0/gpu3``, ``gn10xp-0/eth0.1``,
    ``gn10xp-0/gpu3/stream0``; a track without ``/`` (``leaf0->spine1``) belongs to the fabric.
    """

    track: str
    name: str
    kind: SpanKind
    start_s: float
    end_s: float
    limit: str = ""
    """Limit of a transfer, e.g. ``NIC``."""


@dataclass(frozen=True)
class Breakdown:
    """Parts of a step's time; they add up to the step.

    Everything but ``compute_s`` is *exposed*: time in which the GPUs wait, or (selection) in which
    they do something other than the model's own arithmetic.
    """

    compute_s: float
    exposed_transfer_s: float
    selection_s: float
    latency_s: float
    message_s: float

    @property
    def step_s(self) -> float:
        """Length of the whole step in seconds."""
        return (self.compute_s + self.exposed_transfer_s + self.selection_s + self.latency_s
                + self.message_s)

    @property
    def exposed_s(self) -> float:
        """All that is not compute, in seconds."""
        return self.step_s - self.compute_s


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest GPU in a step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int | None
    """None where the model's layers are not known to keep so much."""
    buffers: int

    @property
    def total(self) -> int:
        """All that is known."""
        return (self.weights + self.gradients + self.optimizer + (self.activations or 0)
                + self.buffers)


@dataclass(frozen=True)
class Expectation:
    """A published or measured figure that an answer is held against."""

    images_per_s: float
    kind: Literal["fitted", "predicted", "published", "measured"]
    within: float
    """Largest relative error that counts as agreement, e.g. 0.02."""
    source: str


@dataclass(frozen=True)
class Interval:
    """Uncertainty from parameters with an interval: P10, P50 and P90 over the draws."""

    low_images_per_s: float
    median_images_per_s: float
    high_images_per_s: float
    low_exposed_s: float
    median_exposed_s: float
    high_exposed_s: float
    draws: int
    refitted: bool = True
    """Whether what the file fits was fitted again in each draw."""
    samples: float = 0.0
    """Samples of a step of all GPUs."""


@dataclass(frozen=True)
class Cause:
    """Effect of one parameter alone on a row, between its own P10 and P90.

    Rates are images/s, or in rows of collectives busbw in bytes/s.
    """

    parameter: str
    low: float | None
    """P10 of the parameter; None where it is no number (the source ports)."""
    high: float | None
    at_low: float
    """Rate where the parameter is at its P10; for source ports the least of a few choices."""
    at_high: float

    @property
    def width(self) -> float:
        """Difference of the two rates."""
        return abs(self.at_high - self.at_low)


class Limit(NamedTuple):
    """A cause of waiting in a row, and its share of the step."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Cost:
    """Cost of a row's hosts."""

    currency: str
    hour: float
    """An hour of all hosts that it uses."""
    samples: float | None = None
    """Samples of a whole training, where the file says how many."""
    goal: str = ""
    """The same in words, e.g. 1e+12 tokens."""
    same_loss: float | None = None
    """Times as many of them to the loss that averaging in each step has after them, if known."""

    @property
    def day(self) -> float:
        """A day of its hosts."""
        return 24 * self.hour

    def of(self, seconds: float) -> float:
        """Cost of that time."""
        return self.hour * seconds / 3600


@dataclass(frozen=True)
class LinkUse:
    """Utilisation of resources over time.

    ``share`` has shape (len(names), len(times_s) - 1): the mean used share of capacity (0 to 1) of
    each resource between ``times_s[i]`` and ``times_s[i + 1]``.
    """

    names: tuple[str, ...]
    times_s: NDArray[np.float64]
    share: NDArray[np.float64]


@dataclass(frozen=True)
class ScenarioResult:
    """The answer for one scenario at one number of GPUs (and one job, where several run)."""

    name: str
    gpus: int
    job: str
    images_per_s: float
    step_s: float
    breakdown: Breakdown
    efficiency: float | None = None
    """Images/s over ``gpus`` times the one-GPU rate (the seeds' linear speed-up), or None."""
    tokens_per_s: float | None = None
    """Of text, where a sample is a sequence."""
    mfu: float | None = None
    """Share of the GPUs' FLOP/s by data sheet that the model's own arithmetic takes, if known."""
    memory: Memory | None = None
    expect: Expectation | None = None
    interval: Interval | None = None
    limits: tuple[Limit, ...] = ()
    """Causes on the step's critical path, the longest first: bottleneck, runner-up, the rest."""
    causes: tuple[Cause, ...] = ()
    """Causes of the interval, the widest first, where they were asked for."""
    spans: tuple[Span, ...] = ()
    """The timeline of the last simulated step."""
    links: LinkUse | None = None
    notes: tuple[str, ...] = field(default=())
    """Sentences for the reader, e.g. which flows a fault stalled and for how long."""
    effort: int = 0
    """Cost of its simulation, in events; the same on every machine."""
    cost: Cost | None = None
    """Cost of its hosts, where the file has prices."""

    @property
    def whole_s(self) -> tuple[float, ...]:
        """Time of a whole training: the answer, then P10 and P90; nothing if none is known.

        The interval is the other way round, since time falls as the rate grows.
        """
        if self.cost is None or self.cost.samples is None:
            return ()
        rates = [self.images_per_s]
        if self.interval is not None:
            rates += [self.interval.high_images_per_s, self.interval.low_images_per_s]
        return tuple(self.cost.samples / rate if rate else math.inf for rate in rates)

    @property
    def same_loss_s(self) -> tuple[float, ...]:
        """Time to the loss that averaging has after it, in the same order; nothing if unknown.

        Published losses have no interval, so its P10 and P90 are of the rate alone.
        """
        times = None if self.cost is None else self.cost.same_loss
        return () if times is None else tuple(times * whole_s for whole_s in self.whole_s)

    @property
    def start_s(self) -> float:
        """Begin of the timeline: its first span, else the first time of ``links``, else 0."""
        first = 0.0 if self.links is None else float(self.links.times_s[0])
        return min((span.start_s for span in self.spans), default=first)

    @property
    def shown_s(self) -> float:
        """Length of the step that the timeline shows; the mean step where there is none."""
        return max((span.end_s for span in self.spans),
                   default=self.start_s + self.step_s) - self.start_s

    @property
    def error(self) -> float | None:
        """Relative error against ``expect`` (positive: the simulator is faster), or None."""
        return None if self.expect is None else self.images_per_s / self.expect.images_per_s - 1.0

    @property
    def expected_exposed_s(self) -> float | None:
        """Exposed time of the expected images/s beside the simulated compute, or None.

        That figure's step less this row's compute; negative where compute alone takes longer.
        """
        if self.expect is None:
            return None
        step_s = self.images_per_s * self.step_s / self.expect.images_per_s
        return step_s - self.breakdown.compute_s


@dataclass(frozen=True)
class UsedParameter:
    """A figure of a host stack or framework that a run used, in SI units."""

    name: str
    """Its set, a dot and the parameter, e.g. ``kernel-tcp.cost_per_byte``."""
    value: float
    low: float
    high: float
    confidence: str
    source: str


@dataclass(frozen=True)
class Origin:
    """Inputs of an answer."""

    sha256: str = ""
    """Hash of the topology file."""
    changes: tuple[str, ...] = ()
    """Values that the command line put in place of the file's."""
    parameters: tuple[UsedParameter, ...] = ()


@dataclass(frozen=True)
class Warned:
    """A key of the file that the user should look at."""

    key: str
    line: int
    """Line of the file, 0 where the key comes from the command line."""
    text: str
    """The whole sentence, with file and line."""


@dataclass(frozen=True)
class Report:
    """All that one run of a topology file answers; rows stand in the file's order."""

    topology: str
    seed: int
    scenarios: tuple[ScenarioResult, ...]
    notes: tuple[str, ...] = ()
    """Sentences about the whole run."""
    origin: Origin = Origin()
    warnings: tuple[Warned, ...] = ()
    """Keys without effect on any row."""


@dataclass(frozen=True)
class TimeInterval:
    """Uncertainty of a collective's time: P10, P50 and P90."""

    low_s: float
    median_s: float
    high_s: float
    draws: int


@dataclass(frozen=True)
class CollectiveRow:
    """One collective of one size by one algorithm, in nccl-tests' terms (rates in bytes/s)."""

    algorithm: str
    size_bytes: int
    """The larger of the bytes that a rank sends into and receives from the collective."""
    count: int
    """Elements per call as nccl-tests counts them: a rank's own share where data is split."""
    time_s: float
    algbw: float
    busbw: float
    choice: str = ""
    """In a row of NCCL: the algorithm and protocol that it would choose, which were simulated."""
    interval: TimeInterval | None = None
    limits: tuple[Limit, ...] = ()
    """Causes of its time, the longest first, where that was asked."""
    causes: tuple[Cause, ...] = ()
    """Causes of its interval, the widest first, where they were asked for."""

    @property
    def busbw_interval(self) -> tuple[float, float, float] | None:
        """P10, P50 and P90 of busbw; bytes over time fall as the time grows."""
        if self.interval is None:
            return None
        moved = self.busbw * self.time_s
        return (moved / self.interval.high_s, moved / self.interval.median_s,
                moved / self.interval.low_s)


@dataclass(frozen=True)
class CollectiveReport:
    """Output of ``--collective``: every algorithm at every size."""

    topology: str
    seed: int
    collective: str
    ranks: int
    datatype: str
    rows: tuple[CollectiveRow, ...]
    origin: Origin = Origin()
    notes: tuple[str, ...] = ()
    """Sentences about the whole run."""
    effort: int = 0
    """Cost of its simulation, in events; the same on every machine."""
