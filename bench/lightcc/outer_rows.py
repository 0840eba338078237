"""Time to a loss over a slow, long line: rare meetings beside averages in each step.

Two hosts of two ranks train a transformer of 7 M parameters on the text of this repository's pages,
with a line of 100 Mb/s and a round trip of 40 ms between them, or of 400 Mb/s and 1 ms. A figure is
the time to the loss on held data that DDP has after `STEPS` steps; judging it takes no time. gloo's
is its time a step on the line, of a few steps, times `STEPS`: its losses are the same on any line.
A batch is one window of 32 symbols, so that computing and line stand in a proportion as with GPUs:
a GPU computes some thousand times as fast as half a core of these. Rows sim- are the simulator's
steps a second, from outer.yaml and the measured costs of the host, beside those measured. Rows
torchft are rounds of its DiLoCo over such a line (torchft_rows.py). Needs root, torch, and the
repository's pages.
"""

from __future__ import annotations

import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.arms import Sample
from bench.comparison import ArmRow, compare
from bench.lightcc import torchft_rows
from bench.lightcc.far_hosts import DEVICE, far_hosts
from bench.lightcc.host_costs import costs_of_outer
from bench.lightcc.lightcc_rows import Ranks, simulated, torch_ranks
from bench.lightcc.text_model import SHAPE, trace
from bench.rows import by_id
from bench.subject import BenchError
from lab.namespace import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.arms import Bench
    from bench.comparison import Arms, Group

SCENARIO = Path(__file__).with_name("outer.yaml")
LINES = {"100m": (100e6, 0.04), "400m": (400e6, 0.001)}
"""Bits a second, and seconds of a round trip."""
STEPS = 200
"""Steps of DDP; the others must reach the loss that it has then."""
MOST_STEPS = 6 * STEPS
RATE_STEPS = {"100m": 6, "400m": 12}
"""Steps in which gloo's time a step is measured."""
PATIENCE_S = 900.0
BESIDE_S, BESIDE_BITS = 5.0, 8 * 28e6
"""Seconds of the line that averages of the model fill while steps without any other communication
compute, and bits of such an average: steps take longer beside it, since ranks share the cores of
this machine with the sessions and with the program that holds frames."""
TASK = {"shape": SHAPE, "batch": 1, "held_back": 64}
TRAINING: dict[str, Any] = {"task": TASK, "seed": 1, "rate": 1e-3, "island": 2}
WAYS: dict[str, dict[str, Any]] = {
    "2d-topk": {"judge_every": 20},
    "DiLoCo": {"judge_every": 30, "outer": {"every": 30}},
    "DiLoCo int8": {"judge_every": 30, "outer": {"every": 30}},
    "streaming DiLoCo": {"judge_every": 30, "judge_first": 29,
                         "outer": {"every": 30, "fragments": 4, "delay": 7}},
    "SparseLoCo": {"judge_every": 15, "outer": {"every": 15, "keep": 128}}}
"""As in outer.yaml. A fragment of 7 MB takes 0.6 s of the slower line, and 7 steps longer; it is
judged when nothing is under way."""
IDS = {"gloo": "gloo", "2d-topk": "topk", "DiLoCo": "diloco", "DiLoCo int8": "int8",
       "streaming DiLoCo": "streaming", "SparseLoCo": "sparse"}


def near_loss() -> float:
    """Give the loss on held data that DDP has after `STEPS` steps, by ranks without a line."""
    with closing(Namespace()) as space:
        ranks = torch_ranks([space] * 4, "127.0.0.1", module_name="outer_rank")
        answers = ranks.ask(do="train_until", way="gloo", steps=STEPS, judge_every=STEPS,
                            patience_s=PATIENCE_S, **TRAINING)
        return float(answers[0]["loss"])


def step_s(judged: list[tuple[int, float, float]]) -> float:
    """Give the seconds of a step after the first judgement, 0.0 where there is but one.

    Before it the first average is dense and the next send more than LIGHT_TOPK_RATIO, windows open,
    and DDP makes its buckets anew: the simulator predicts what comes then.

    >>> step_s([(20, 14.0, 3.1), (40, 20.0, 2.8), (60, 26.0, 2.5)])
    0.3
    """
    (first, after_s, _), *others = judged
    return (others[-1][1] - after_s) / (others[-1][0] - first) if others else 0.0


class Line:
    """The ranks at both ends of a line, and what they measured last."""

    def __init__(self, ranks: Ranks, name: str) -> None:
        self._ranks, self._name = ranks, name
        self._loss = near_loss()
        self._step_s: dict[str, float] = {}
        self._predicted: dict[str, float] = {}

    def _train(self, way: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._ranks.ask(
            do="train_until", way=way, patience_s=PATIENCE_S, **TRAINING, **arguments)[0]
        self._step_s[way] = step_s(answer["judged"]) or answer["seconds"] / answer["steps"]
        return answer

    def gloo(self) -> Sample:
        """Give the time of `STEPS` steps."""
        few = RATE_STEPS[self._name]
        return Sample(STEPS * self._train("gloo", steps=few, judge_every=few)["seconds"] / few)

    def to_loss(self, way: str) -> Callable[[], Sample]:
        """Measure the time to the loss by one of `WAYS`."""
        def take() -> Sample:
            answer = self._train(way, steps=MOST_STEPS, target=self._loss, **WAYS[way])
            if (loss := answer["judged"][-1][-1]) > self._loss:
                raise BenchError(f"{way} has a loss of {loss:.3f} after {MOST_STEPS} steps; DDP "
                                 f"has {self._loss:.3f} after {STEPS}")
            return Sample(answer["seconds"])
        return take

    def speed(self, way: str) -> Callable[[], Sample]:
        """Give the steps a second of the last training."""
        def take() -> Sample:
            if way not in self._step_s:
                self.gloo() if way == "gloo" else self.to_loss(way)()
            return Sample(1 / self._step_s[way])
        return take

    def prediction(self, way: str) -> Callable[[], Sample]:
        """Give the simulator's steps a second, of this round's costs of the host."""
        def take() -> Sample:
            if way not in self._predicted:
                self._predicted = self._simulate()
            return Sample(self._predicted.pop(way))
        return take

    def _simulate(self) -> dict[str, float]:
        rate_bps, round_trip_s = LINES[self._name]
        alone = self._train("alone", steps=60, judge_every=60)
        beside = self._train("alone", steps=MOST_STEPS, judge_every=MOST_STEPS,
                             beside=round(BESIDE_S * rate_bps / BESIDE_BITS))
        changes = [f"hosts[0].gpus.samples_per_s={60 / alone['seconds']:.4f}",
                   f"frameworks.host.slowdown="
                   f"{beside['seconds'] / beside['steps'] / alone['seconds'] * 60:.4f}",
                   f"hosts[0].nics[0].rate={rate_bps / 1e6:g}Mbps",
                   f"fabric.latency={round_trip_s / 4 * 1e6:g}us",
                   *costs_of_outer(self._ranks.ask)]
        with tempfile.TemporaryDirectory() as folder:
            return simulated([*changes, trace(folder)], SCENARIO)


def line(name: str) -> Group:
    """Make the group of a line."""
    @contextmanager
    def group(_: Bench) -> Iterator[Arms]:
        with far_hosts(*LINES[name]) as (a, b):
            line = Line(torch_ranks([a.space, a.space, b.space, b.space], a.address,
                                    module_name="outer_rank", GLOO_SOCKET_IFNAME=DEVICE,
                                    HARP_IFNAME=DEVICE), name)
            arms: Arms = {"gloo": line.gloo, **{way: line.to_loss(way) for way in WAYS}}
            speeds = {f"steps, {way}": line.speed(way) for way in arms}
            yield {**arms, **speeds, **{f"sim, {way}": line.prediction(way) for way in arms}}
    return group


def rows() -> Iterator[ArmRow]:
    """Give a row for each way and line."""
    for name, (rate_bps, round_trip_s) in LINES.items():
        group = line(name)
        where = f"{rate_bps / 1e6:g} Mb/s, {round_trip_s * 1e3:g} ms"
        for way, least in (("SparseLoCo", 20), ("DiLoCo", 10), ("streaming DiLoCo", 10),
                           ("DiLoCo int8", 0), ("2d-topk", 0)):
            yield ArmRow(f"loss-{name}-{IDS[way]}", f"{way}, {where}", group, way, unit="s",
                         against=("gloo",), lower=True,
                         target=1 / least if least and name == "100m" else 0.0)
        for way in ("gloo", *WAYS):
            yield ArmRow(f"sim-{name}-{IDS[way]}", f"simulated {way}, {where}", group,
                         f"sim, {way}", unit="steps/s", against=(f"steps, {way}",), within=0.15)


def available() -> dict[str, ArmRow]:
    """Leave out what needs torchft where it is not installed."""
    return {name: row for name, row in ROWS.items()
            if torchft_rows.is_there() or "torchft" not in name}


ROWS = by_id((*rows(), *torchft_rows.rows()))
SUBJECT = compare(__doc__, ROWS, known=available)
