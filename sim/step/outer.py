"""A job whose islands meet every so often: local SGD, DiLoCo, streaming DiLoCo, SparseLoCo.

An island is a host, whose GPUs train in step as an ordinary job would on it alone. After a step of
`harp.lightcc.outer_policy` each GPU sends its share of a fragment to its like on all other hosts,
and after the delay mixes in what comes back; `harp.lightcc.outer` does the same. GPUs go on
meanwhile, and wait only if it has not come by then.

The GPU's part in it is memory traffic, counted pass by pass as `harp.lightcc.outer` makes them,
with e elements that a GPU holds of a fragment, and p for its share of it:

| pass | bytes |
|---|---|
| flatten, take the share, subtract from the anchor | 8 e + 20 p |
| error feedback: fade and add; chunks laid out (SparseLoCo) | 28 p |
| sum of R messages, a pass of the share for each (SparseLoCo) | 16 R p |
| momentum, Nesterov's step (DiLoCo, streaming) | 32 p |
| anchor's step | 12 p |
| parameters written, with a mixture if there is a delay | 8 e or 12 e |

Their rate is that of a cast, which moves 6 bytes an element (``cast_per_element``). Selection takes
``selection_per_element`` for each of p. The share that others have comes over the island's own
links, as an allgather of fp32.

Differences in few bits go by the plan `few-bits`, which counts their encoding and adding, or with
``allreduce: ring`` by `ring-few-bits`, as INTELLECT-1's did (arXiv 2412.01152).

Islands are as slow as their slowest GPU in each step, and wait for the slowest island only when
they meet: over a round deviations of islands average out, so a step of all is longer by the largest
of M deviations over the square root of the round's steps.

A step in which no part begins, is being sent or ends is like every other such step, so it is
simulated once. As many steps as the delay are simulated before the round that counts, so that what
is under way when it begins is.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harp.collectives.registry import make_plan
from harp.lightcc.outer_policy import FP32_BITS, split
from sim.records.timeline_track import Timeline
from sim.step.outer_loss import excess
from sim.step.recipe import Chosen
from sim.step.train import CAST_BYTES, Job, largest_deviation

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from harp.collectives.collective_plan import Plan
    from harp.lightcc.outer_policy import OuterPolicy
    from sim.records.results import Breakdown, Limit
    from sim.workloads.model import Model

    Process = Generator[simpy.Event, Any, None]

class OuterJob(Job):
    """A job of islands.

    Args:
        policy: what is sent when.
        whole: the whole model; a pipeline's stage is a part of it.
        arguments: of `Job`; ``island`` is the GPUs of a host.
    """

    def __init__(self, *arguments: Any, policy: OuterPolicy, whole: Model, island: int,
                 **options: Any) -> None:
        super().__init__(*arguments, island=island, **options)
        self.policy = (replace(policy, exchange="ring") if self.recipe.allreduce == "ring"
                       else policy)
        self.islands, self.whole = self.gpus // island, whole
        sizes = [tensor.elements for layer in whole.layers
                 for tensor in (*layer.tensors, *layer.expert_tensors)]
        self._elements = [sum(sizes[some.start:some.stop])
                          for some in split(sizes, policy.fragments)]
        self.lead = policy.delay
        self._stretch += (self.recipe.costs.jitter.value * largest_deviation(self.islands)
                          / math.sqrt(policy.every))
        self._step = policy.every - policy.delay
        self._under_way: dict[int, simpy.Process] = {}
        self._plain: tuple[tuple[float, float], Breakdown, tuple[Limit, ...]] | None = None
        self._byte_s = self.recipe.costs.cast_per_element.value / CAST_BYTES

    def share(self, fragment: int) -> int:
        """Elements of a fragment for which a GPU answers."""
        return -(-self._elements[fragment] // self.island)

    @property
    def note(self) -> str:
        """Notes for the row's reader."""
        share = excess(self.policy, self.whole, self.islands)
        if share is None:
            loss = ("islands drift apart between, and most that is published of it is of language "
                    "models.")
        else:
            loss = (f"published losses of such sizes and as many islands are {abs(share):.1%} "
                    f"{'above' if share > 0 else 'below'} those of averaging in each step, after "
                    "as many tokens, 20 to 320 a parameter (arXiv 2503.09799).").replace("%", " %")
        return (f"islands meet every {self.policy.every} steps ({self.policy.method}), and keep "
                f"{self.state_bytes / 1e6:,.0f} MB on each GPU for it; equal speed is not "
                f"equal loss: {loss}")

    @property
    def state_bytes(self) -> int:
        """Memory of a GPU that the outer optimizer takes."""
        return sum(self.policy.state_bytes(self.share(number))
                   for number in range(self.policy.fragments))

    def steps_of(self, wanted: int) -> int:
        """Those before the first round, and as many whole rounds as have the wanted steps."""
        return self.lead + -(-wanted // self.policy.every) * self.policy.every

    def step(self) -> Process:
        """One step of every island, and what follows it."""
        quiet = self._is_quiet(self._step + 1)
        yield from super().step()
        if quiet and self._plain is None:
            self._plain = (self.steps_s[-1], self.breakdowns[-1],
                           self.paths[-1] if self.finds_paths else ())

    def repeat_step(self, times: int) -> None:
        """Count steps that are like one before, up to the next one that is not."""
        while times > 0 and self._plain is not None and self._is_quiet(self._step + 1):
            step_s, breakdown, path = self._plain
            self.steps_s.append(step_s)
            self.breakdowns.append(breakdown)
            if self.finds_paths:
                self.paths.append(path)
            self._step += 1
            times -= 1

    def _is_quiet(self, step: int) -> bool:
        """Whether nothing of other islands touches a step."""
        return not (self.policy.begins(step) or self.policy.ends(step)
                    or any(not each.processed for each in self._under_way.values()))

    # ---- the outer step

    def _after_step(self) -> Process:
        self._step += 1
        for number in self.policy.begins(self._step):
            yield from self._begin(number)
        for number in self.policy.ends(self._step):
            if number in self._under_way:
                yield from self._end(number)

    def _begin(self, number: int) -> Process:
        share, name = self.share(number), f"difference {number}"
        yield from self._pass(8 * self._held(number) + 20 * share, name)
        if self.policy.sparse:
            yield from self._pass(28 * share, name)
            yield from self._compute(
                self.recipe.costs.selection_per_element.value * share, "selection",
                f"top-k {number}")
        self._under_way[number] = self.env.process(self._meet(number))

    def _meet(self, number: int) -> Process:
        """Exchange a fragment between the islands: each GPU with its like."""
        if self.comm is None or not self.share(number):
            return
        plan = self._plan(self.share(number))
        placement = self.placement("2d")
        groups = [[gpus[first::self.island] for gpus in placement] for first in range(self.island)]
        self._count_running(1)
        yield from self._run_groups(Chosen(plan), groups, self._line(number), f"fragment {number}")
        self._count_running(-1)

    def _plan(self, share: int) -> Plan:
        policy = self.policy
        if policy.bits < FP32_BITS and not policy.sparse:  # the plan's vector is of float32
            return make_plan(policy.plan, ranks=self.islands, nbytes=share * FP32_BITS // 8,
                             bits=policy.bits)
        nbytes = policy.message_bytes(share) * (self.islands if policy.sparse else 1)
        return make_plan(policy.plan, ranks=self.islands, nbytes=nbytes, unit_bytes=1)

    def _end(self, number: int) -> Process:
        under_way = self._under_way.pop(number)
        if not under_way.processed:
            yield from self._late(under_way)
        share, held, policy = self.share(number), self._held(number), self.policy
        summed = 16 * self.islands * share if policy.sparse else 0
        momentum = 32 * share if policy.has_momentum else 0
        name = f"outer step {number}"
        yield from self._pass(summed + momentum + 12 * share, name)
        if self.comm is not None and self.island > 1 and share:
            plan = make_plan("allgather", ranks=self.island, nbytes=4 * share * self.island)
            own = [[gpus[:self.island] for gpus in self.placement("2d")]]
            yield from self._late(self.env.process(
                self._run_groups(Chosen(plan), own, self._line(number), name)))
        yield from self._pass((12 if policy.delay else 8) * held, name)

    def _held(self, number: int) -> int:
        """Elements of a fragment that a GPU holds: all of them, unless the island divides them."""
        layout = self.recipe.layout
        return -(-self._elements[number]
                 // (self.island if layout.is_sharded else layout.split))

    def _line(self, number: int) -> Timeline:
        return Timeline(self.env, self.record, f"{self.track}/outer{number}")

    def _pass(self, nbytes: float, name: str) -> Process:
        """Move bytes through the GPU's memory."""
        yield from self._compute(self._byte_s * nbytes, "update", name)

    def _late(self, event: simpy.Event) -> Process:
        """Wait for the network when the step's own work is done."""
        start_s = self.env.now
        yield event
        self._late_waits.append((start_s, self.env.now))
