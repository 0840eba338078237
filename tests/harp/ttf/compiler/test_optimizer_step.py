"""A compiled step of an optimizer: that of eager, compiled once under any schedule."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import harp.ttf  # noqa: E402
from harp.ttf.compiler import optimizer_step  # noqa: E402
from harp.ttf.compiler.decisions import Decision  # noqa: E402
from tests.harp.ttf.compiler.eager_twins import Graphs, step_both, twin_optimizers  # noqa: E402
from tests.support import PATIENCE_S  # noqa: E402
from tests.support.levels import long  # noqa: E402

# Torch's own, when it loads inductor.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


def test_an_optimizer_compiles_once_under_a_schedule():
    graphs = Graphs()
    weights = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    ours, theirs = (torch.optim.SGD([weight], lr=0.5) for weight in weights)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (ours, theirs)]
    step = harp.ttf.compile(ours, aside=False, backend=graphs)
    for _ in range(12):
        step_both(weights, step, theirs, schedules)
    torch.testing.assert_close(*weights)
    assert graphs.static + graphs.dynamic == 1


def test_every_number_of_an_optimizer_may_follow_a_schedule():
    graphs = Graphs()
    weights = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    ours, theirs = (torch.optim.AdamW([weight], lr=0.1) for weight in weights)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(each, 0.1, total_steps=20)
                 for each in (ours, theirs)]  # a learning rate and the first beta
    step = harp.ttf.compile(ours, aside=False, backend=graphs)
    for _ in range(16):
        step_both(weights, step, theirs, schedules)
        assert ours.param_groups[0]["betas"] == theirs.param_groups[0]["betas"]
        assert type(ours.param_groups[0]["lr"]) is float
    torch.testing.assert_close(*weights)
    assert graphs.static + graphs.dynamic == 1


def test_a_number_may_become_a_whole_one():
    graphs = Graphs()
    weights = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    ours, theirs = (torch.optim.AdamW([weight], lr=0.1) for weight in weights)
    step = harp.ttf.compile(ours, aside=False, backend=graphs)
    for rate in (0.1, 0.2, 0.1, 0.2, 0.1, 0.2, 0, 1, 0.1):
        for each in (ours, theirs):
            each.param_groups[0]["lr"] = rate
        step_both(weights, step, theirs, [])
        assert ours.param_groups[0]["lr"] == rate
    torch.testing.assert_close(*weights)
    assert graphs.static == 1


class Averaging(torch.optim.Optimizer):
    """Adds its rates up in its group, as optimizers without schedules do."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "sum": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["sum"] = group["sum"] + group["lr"]
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * (group["lr"] / group["sum"]))


def test_a_number_that_a_step_changes_stays_changed():
    weights = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    ours, theirs = (Averaging([weight], lr=0.5) for weight in weights)
    step = harp.ttf.compile(ours, aside=False, backend=Graphs())
    for number in range(12):
        step_both(weights, step, theirs, [])
        assert ours.param_groups[0]["sum"] == theirs.param_groups[0]["sum"] == 0.5 * (number + 1)
    torch.testing.assert_close(*weights)
    assert type(ours.param_groups[0]["sum"]) is float


def test_an_optimizer_that_does_not_compile_runs_eagerly_and_says_so(caplog):
    graphs = Graphs()
    weights = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    ours, theirs = (torch.optim.SGD([weight], lr=0.1, momentum=0.9) for weight in weights)
    step = harp.ttf.compile(ours, aside=False, backend=graphs)
    for number in range(12):
        for weight, optimizer in zip(weights, (ours, theirs), strict=True):
            weight.grad = weight.detach().clone()
            optimizer.param_groups[0]["momentum"] = 0.9 - 0.01 * number
        step()
        theirs.step()
    torch.testing.assert_close(*weights)
    assert graphs.static + graphs.dynamic == 0
    assert "SGD runs eagerly: it does not compile with lr, momentum in tensors" in caplog.text


@long
def test_many_optimizers_compile_each_their_step(caplog):
    """torch's wrapper of steps is one function, with an entry for each optimizer."""
    for _ in range(12):
        graphs = Graphs()
        weights, (ours, theirs), schedules = twin_optimizers()
        step = harp.ttf.compile(ours, aside=False, backend=graphs)
        for _ in range(7):
            step_both(weights, step, theirs, schedules)
        assert graphs.static == 1
        torch.testing.assert_close(*weights)
    assert "recompile_limit" not in caplog.text


def test_steps_of_an_optimizer_run_eagerly_until_a_copy_is_compiled_and_pays(monkeypatch):
    begun, go_on, hooked = threading.Event(), threading.Event(), []

    def slow(graph, _, **__):
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert go_on.wait(PATIENCE_S)
        return graph.forward
    times = iter((2.0, 1.0))  # of eager and compiled steps
    monkeypatch.setattr(optimizer_step, "seconds_of", lambda run: [run(), next(times)][1])
    weights, (ours, theirs), schedules = twin_optimizers()
    ours.register_step_post_hook(lambda *_: hooked.append(1))
    step = harp.ttf.compile(ours, backend=slow, after_s=0)
    for _ in range(6):
        step_both(weights, step, theirs, schedules)
    assert begun.wait(PATIENCE_S)
    step_both(weights, step, theirs, schedules)  # does not wait for the compilation
    assert step.decisions() == []
    go_on.set()
    step.wait()
    assert step.decisions()[0].startswith("a static graph: 1000 steps take 2000.00 s eagerly")
    for _ in range(3):
        step_both(weights, step, theirs, schedules)
    torch.testing.assert_close(*weights)
    assert len(hooked) == 10  # the copy has no hooks, and its steps are not the optimizer's


def test_another_rank_has_the_tensors_of_rank_0s_decision_before_its_numbers_change():
    class OfRank0:
        first = False

        def get(self, _):
            return None  # the thread is the first to know

        def from_first_rank(self, _):
            return Decision(counters=((0, "betas.0"),))

        def add(self, *_):
            pass
    graphs = Graphs()
    weights, (ours, theirs), schedules = twin_optimizers()
    step = optimizer_step.Step(ours, OfRank0(), backend=graphs, after_s=0)
    for _ in range(5):
        step_both(weights, step, theirs, schedules)
    step.wait()
    for number in range(6):
        for each in (ours, theirs):
            each.param_groups[0]["betas"] = (0.9 - 0.01 * max(0, number - 1), 0.999)
        step_both(weights, step, theirs, schedules)
    torch.testing.assert_close(*weights)
    assert graphs.static == 1


def test_groups_and_parameters_without_gradients_are_tried_as_they_are(monkeypatch):
    """One group has a rate of its own, and one parameter never has a gradient."""
    graphs, times = Graphs(), iter((2.0, 1.0))
    monkeypatch.setattr(optimizer_step, "seconds_of", lambda run: [run(), next(times)][1])
    both = []
    for _ in range(2):
        weights = [nn.Parameter(torch.full((4,), float(each))) for each in range(1, 5)]
        both.append((weights, torch.optim.AdamW([
            {"params": weights[:2]}, {"params": weights[2:], "lr": 0.01}], lr=0.1)))
    (ours, optimizer), (theirs, twin) = both
    step = harp.ttf.compile(optimizer, backend=graphs, after_s=0)
    for number in range(12):
        for weights in (ours, theirs):
            for weight in weights[:3]:
                weight.grad = weight.detach().clone()
        step()
        twin.step()
        if number == 7:
            step.wait()
    assert step.decisions()[0].startswith("a static graph")
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert graphs.static > 0


def test_an_optimizer_whose_compilation_does_not_pay_stays_eager(monkeypatch, tmp_path):
    graphs = Graphs()
    monkeypatch.setattr(optimizer_step, "seconds_of", lambda run: [run(), 2.0][1])
    weights, (ours, theirs), schedules = twin_optimizers()
    step = harp.ttf.compile(ours, cache=tmp_path, backend=graphs, after_s=0)
    for _ in range(6):
        step_both(weights, step, theirs, schedules)
    step.wait()
    compiled = graphs.static
    for _ in range(4):
        step_both(weights, step, theirs, schedules)
    torch.testing.assert_close(*weights)
    assert step.decisions()[0].startswith(
        "eager: 1000 steps take 2000.00 s eagerly, 2000.00 s compiled")
    assert graphs.static == compiled
    # Nothing is tried anew.
    again = harp.ttf.compile(ours, cache=tmp_path, backend=graphs, after_s=0)
    for _ in range(6):
        step_both(weights, again, theirs, schedules)
    again.wait()
    assert (again.decisions(), graphs.static) == (step.decisions(), compiled)


def test_a_copy_that_does_not_compile_leaves_its_optimizer_eager(monkeypatch, caplog):
    graphs = Graphs()
    monkeypatch.setattr(optimizer_step, "seconds_of", lambda run: [run(), 2.0][1])
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    step = harp.ttf.compile(optimizer, backend=graphs, after_s=0)
    for number in range(6):
        weight.grad = weight.detach().clone()
        optimizer.param_groups[0]["momentum"] = 0.9 - 0.01 * number
        step()
    step.wait()
    said = "it does not compile with lr, momentum in tensors"
    assert step.decisions() == [f"eager: {said}"]
    assert f"SGD stays eager: {said}" in caplog.text
    assert graphs.static == 0


def test_an_optimizer_that_cannot_be_copied_stays_eager_and_says_so(caplog):
    weights, (ours, theirs), schedules = twin_optimizers()
    ours.param_groups[0]["owner"] = threading.Lock()
    step = harp.ttf.compile(ours, after_s=0)
    for _ in range(6):
        step_both(weights, step, theirs, schedules)
    step.wait()
    step_both(weights, step, theirs, schedules)
    torch.testing.assert_close(*weights)
    assert "AdamW stays eager: cannot pickle" in caplog.text
