"""One rank of test_worker_overlap.py: a gather and a reduction meet an operator that computes.

From the plan of a step it picks an exchange that may begin once some event is over, and that a
later event needs. The event between them, an operator, does not end before the exchange has ended,
and the exchange does not begin before that operator has begun. So they meet, or both wait in vain.
Prints a JSON of the kind of exchange to whether they met.
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

import harp.lightcc.torch  # noqa: F401  (it registers the backend)
from harp.angelptm.page_plan import REDUCE, Job
from tests.harp.angelptm.models import config, engine_of, loss_of, seeded
from tests.harp.angelptm.rank import parts
from tests.support.leave import leave

PATIENCE_S = 40.0
DEVICE, HOST = 16, 120
KINDS = {"gather": lambda action: not isinstance(action, Job) and action.gathers,
         "reduction": lambda action: isinstance(action, Job) and action.kind == REDUCE}


def spans(plan):
    """Give of each action the first event that it may run beside, and the first that needs it."""
    begin = 0
    for number, action in enumerate(plan.actions):
        begin = max(begin, action.after + 1)
        end = next((event for event, need in enumerate(plan.need) if need > number),
                   len(plan.need))
        yield action, begin, end


def chosen(plan, kind):
    """Pick the exchange with the longest span, of those behind the first event."""
    found = [(end - begin, begin, action) for action, begin, end in spans(plan)
             if KINDS[kind](action) and 0 < begin < end]
    length, begin, action = max(found, key=lambda each: each[:2])
    assert length >= 1
    return action, begin


class Meeting:
    """Holds an action and an operator until both are under way."""

    def __init__(self, engine, kind):
        self.steps, self.worker = engine._steps, engine._steps._worker
        self.kind, self.action, self.event = kind, None, -1
        self.computing, self.exchanged = threading.Event(), threading.Event()
        self.met = False
        self.act, self.run, self.touch = self.worker._act, self.worker.run, self.steps.touch
        self.worker._act, self.worker.run, self.steps.touch = self.acts, self.runs, self.touches

    def runs(self, plan):
        """Choose an exchange of the step that begins."""
        self.action, self.event = chosen(plan, self.kind)
        self.run(plan)

    def acts(self, action):
        """Run an action of the worker's thread."""
        if action is not self.action:
            self.act(action)
        elif self.computing.wait(PATIENCE_S):
            self.act(action)
            self.exchanged.set()

    def touches(self, pages):
        """Begin an operator; the chosen one waits for its exchange, as a long one would."""
        before = len(self.steps._events)
        self.touch(pages)
        if self.event == before < len(self.steps._events):
            self.computing.set()
            self.met = self.exchanged.wait(PATIENCE_S)


def main():
    """Train some steps, and then one for each kind."""
    torch.set_num_threads(1)
    dist.init_process_group("lightcc", timeout=timedelta(seconds=3 * PATIENCE_S))
    found, data = {}, parts(8)
    how = config(DEVICE, HOST, zero_optimization={"stage": int(sys.argv[1])})
    for kind in KINDS:
        with engine_of(seeded(), how) as engine:
            for number, tokens in enumerate(data[:5]):
                meeting = Meeting(engine, kind) if number == 4 else None
                engine.backward(loss_of(engine, tokens))
                engine.step()
            assert engine._steps.diverged == 0
            found[kind] = meeting.met
    print(json.dumps(found))
    dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main()
