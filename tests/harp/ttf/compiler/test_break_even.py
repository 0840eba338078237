"""The start of a compilation: eager calls took as long as one takes at least."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")


import harp.ttf  # noqa: E402
from harp.ttf.compiler import compile_plan, optimizer_step  # noqa: E402
from tests.harp.ttf.compiler.eager_twins import (  # noqa: E402
    Clock,
    Graphs,
    Rows,
    compare,
    step_both,
    twin_optimizers,
    twins,
)
from tests.support import PATIENCE_S  # noqa: E402

# Torch's own, when it loads inductor.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


def test_a_module_is_not_compiled_before_its_calls_took_as_long_as_that(monkeypatch):
    """1 s, and 0.03 s for each of four parameters."""
    graphs, clock = Graphs(), Clock()
    monkeypatch.setattr(compile_plan, "time", clock)
    module, eager = twins(Rows)
    module.register_forward_hook(lambda *_: clock.move(0.11))
    compiled = harp.ttf.compile(module, backend=graphs, learn=2)

    def join():
        for thread in threading.enumerate():
            if thread.name == "harp.ttf.compile":
                thread.join(PATIENCE_S)
    compare(compiled, eager, [4] * 10)
    join()
    assert graphs.static == 0
    compare(compiled, eager, [4])
    join()
    assert graphs.static > 0
    compare(compiled, eager, [4])


def test_an_optimizer_is_not_tried_before_its_steps_took_as_long_as_a_compilation(monkeypatch):
    graphs, clock = Graphs(), Clock()
    monkeypatch.setattr(optimizer_step, "time", clock)
    monkeypatch.setattr(optimizer_step, "seconds_of", lambda run: [run(), 2.0][1])
    weights, (ours, theirs), schedules = twin_optimizers()
    ours.register_step_post_hook(lambda *_: clock.move(0.1))
    step = harp.ttf.compile(ours, backend=graphs)
    for _ in range(10):
        step_both(weights, step, theirs, schedules)
    step.wait()
    assert (step.decisions(), graphs.static) == ([], 0)
    for _ in range(3):  # 1 s and 0.1 s for the one parameter
        step_both(weights, step, theirs, schedules)
    step.wait()
    assert graphs.static > 0
    torch.testing.assert_close(*weights)
