"""``harp.ttf.compile``: results and gradients of eager, in as few graphs as there can be.

The backend is dynamo's with torch's eager kernels where the number of graphs matters, and inductor
where compiled code is kept.
"""

from __future__ import annotations

import copy
import json
import logging
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import harp.ttf  # noqa: E402
from harp.ttf.compiler import compile_plan, optimizer_step  # noqa: E402
from harp.ttf.compiler.compiled import MOST_PLANS  # noqa: E402
from harp.ttf.compiler.decisions import Decision  # noqa: E402
from harp.ttf.compiler.variants import Variant  # noqa: E402
from tests.support import PATIENCE_S  # noqa: E402
from tests.support.levels import long  # noqa: E402

# Torch's own, when it loads inductor.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


class Graphs:
    """A backend that counts what it compiles, and can make dynamic code look slow."""

    def __init__(self):
        self.static = self.dynamic = 0

    def __call__(self, graph, inputs, **_):
        symbolic = any(isinstance(value, torch.SymInt) for value in inputs)
        self.dynamic += symbolic
        self.static += not symbolic
        return graph.forward


class Rows(nn.Module):
    """Each row by itself, with a counter and a float argument."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        self.calls = 0

    def forward(self, x, scale=1.0):
        self.calls += 1
        return self.net(x).squeeze(-1) * scale + self.calls


class Mean(nn.Module):
    """The mean over rows: padding changes it, unless there is a mask."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)

    def forward(self, x, mask=None):
        each = self.net(x).squeeze(-1)
        if mask is None:
            return each.mean()
        return torch.where(mask, each, 0).sum() / mask.sum()


def twins(kind):
    torch.manual_seed(0)
    module = kind()
    return module, copy.deepcopy(module)


def compare(compiled, eager, sizes, **arguments):
    """Call both at sizes, and hold results and gradients of one against the other's."""
    for size in sizes:
        x = torch.randn(size, 8)
        found, right = compiled(x, **arguments), eager(x, **arguments)
        torch.testing.assert_close(found, right)
        found.sum().backward()
        right.sum().backward()
        for one, other in zip(compiled.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
            one.grad = other.grad = None


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self):
        self.now_s = 0.0

    def perf_counter(self):
        return self.now_s

    def move(self, seconds):
        self.now_s += seconds


def settled(module, graphs, **settings):
    return harp.ttf.compile(module, backend=graphs, learn=6, aside=False, **settings)


def test_one_size_is_one_static_graph():
    module, eager = twins(Rows)
    graphs = Graphs()
    compiled = settled(module, graphs)
    compare(compiled, eager, [4] * 20)
    assert (graphs.static, graphs.dynamic) == (1, 0)
    assert compiled.decisions() == ["one static graph: no size varies"]


def test_counters_and_floats_that_change_compile_nothing_again():
    module, eager = twins(Rows)
    graphs = Graphs()
    compiled = settled(module, graphs)
    for call in range(30):
        compare(compiled, eager, [4], scale=0.1 * call)
    assert graphs.static == 1
    assert module.calls == eager.calls == 30
    assert type(module.calls) is int


def test_many_sizes_are_a_dynamic_dimension_or_buckets_by_what_they_cost(monkeypatch):
    for dynamic_slower, horizon, statics, words in (
            (1.0, 1, 0, "a dynamic dimension: 6 calls take"),  # as many as there were
            (1.0, 10**6, 1, "a dynamic dimension: over"),
            (100.0, 10**6, 8, "buckets")):
        module, eager = twins(Rows)
        graphs = Graphs()
        compiled = settled(module, graphs, horizon=horizon)
        take = compile_plan.seconds_of

        def timed(run, take=take, slower=dynamic_slower):
            run()
            names = [cell.cell_contents.name for cell in run.__closure__
                     if isinstance(cell.cell_contents, Variant)]
            return 1e-3 * (slower if names == ["any_size"] else 1.0)
        monkeypatch.setattr(compile_plan, "seconds_of", timed)
        compare(compiled, eager, [3, 5, 9, 5, 3, 7, 2, 9, 8, 4, 12, 6])
        monkeypatch.setattr(compile_plan, "seconds_of", take)
        assert compiled.decisions()[0].startswith(words)
        assert graphs.dynamic == 1
        assert min(statics, 1) <= graphs.static <= statics


class Constants(nn.Module):
    """Its code asks for the size, as code that chooses a layout does: a graph for each."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)

    def forward(self, x):
        return self.net(x).mean() * (1 if int(x.shape[0]) in {3, 5, 7, 9} else 2)


def test_a_graph_that_torch_binds_to_each_size_is_not_taken_for_one_of_any_size():
    module, eager = twins(Constants)
    graphs = Graphs()
    compiled = settled(module, graphs)
    compare(compiled, eager, [3, 5, 9, 7, 3, 4, 2, 9, 8, 4, 6, 10])
    assert graphs.static + graphs.dynamic == 2
    assert compiled.decisions()[0].startswith("eager: ")


class Pairs(nn.Module):
    """Every row of one argument by every row of another; sizes are independent."""

    def forward(self, one, other):
        return (one[:, None] * other[None]).sum(-1)


def test_sizes_that_are_equal_by_chance_do_not_bind_the_graph():
    graphs = Graphs()
    compiled = settled(Pairs(), graphs)
    for one, other in [(4, 4), (3, 5), (6, 2), (7, 3), (5, 4), (6, 6), (3, 7), (9, 8)]:
        x, y = torch.randn(one, 8), torch.randn(other, 8)
        torch.testing.assert_close(compiled(x, y), Pairs()(x, y))
    assert (graphs.static, graphs.dynamic) == (0, 1)


def test_padding_that_changes_results_is_not_used():
    module, eager = twins(Mean)
    compiled = settled(module, Graphs(), horizon=10**9)
    compare(compiled, eager, [3, 5, 9, 5, 3, 7, 2, 9, 8, 4])
    assert compiled.decisions() == [
        "a dynamic dimension: padding changes results, and there is no mask"]


def test_a_module_that_takes_a_mask_is_padded():
    module, eager = twins(Mean)
    compiled = settled(module, Graphs(), horizon=10**9, mask="mask")
    compare(compiled, eager, [3, 5, 9, 5, 3, 7, 2, 9, 8, 4])
    assert "padding changes results" not in compiled.decisions()[0]


def test_calls_run_while_compilation_runs_aside():
    module, eager = twins(Rows)
    graphs = Graphs()
    compiled = harp.ttf.compile(module, backend=graphs, learn=2, after_s=0)
    compare(compiled, eager, [4] * 2)
    compare(compiled, eager, [4] * 3)
    compiled.wait()
    compare(compiled, eager, [4] * 3)
    assert graphs.static == 1


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


def test_waiting_compiles_what_calls_were_learned_from():
    module, eager = twins(Rows)
    graphs = Graphs()
    compiled = harp.ttf.compile(module, backend=graphs, learn=2, after_s=1e9)
    compare(compiled, eager, [4])
    compiled.wait()
    assert graphs.static == 0
    compare(compiled, eager, [4])
    compiled.wait()
    assert graphs.static == 1
    compare(compiled, eager, [4] * 2)
    assert graphs.static == 1


def test_a_compiler_that_fails_leaves_calls_eager_and_says_so(caplog):
    def broken(graph, inputs, **_):
        raise RuntimeError("no compiler here")
    module, eager = twins(Rows)
    compiled = settled(module, broken)
    compare(compiled, eager, [4] * 12)
    assert [(record.levelname, record.message) for record in caplog.records
            if record.name.startswith("harp")] == [
        ("WARNING", "Rows stays eager: no compiler here")]


FORKED = """
import logging, os, signal, sys, threading
import torch
from torch import nn
import harp.ttf
logging.basicConfig(format="%(message)s", stream=sys.stdout)
torch.set_num_threads(1)  # a child of fork has none of OpenMP's threads
begun, may_end = threading.Event(), threading.Event()
def backend(graph, inputs, **_):
    begun.set()
    may_end.wait()
    return graph.forward
def trained(module):
    for _ in range(3):
        module(torch.ones(3, 4)).sum().backward()
module = harp.ttf.compile(nn.Linear(4, 2), backend=backend, learn=1, after_s=0)
trained(module)
begun.wait()
child = os.fork()
if not child:
    signal.alarm(PATIENCE_S)
    other = harp.ttf.compile(nn.Linear(4, 2), learn=1, after_s=0)
    for each in (module, other):
        trained(each)
        each.wait()
    sys.stdout.flush()
    os._exit(0)
status = os.waitpid(child, 0)[1]
may_end.set()
module.wait()
print(os.waitstatus_to_exitcode(status), module.decisions())
"""


def test_a_process_that_is_forked_during_a_compilation_runs_eagerly():
    done = subprocess.run([sys.executable, "-c", FORKED.replace("PATIENCE_S", str(PATIENCE_S))],
                          capture_output=True, text=True, check=True, timeout=3 * PATIENCE_S)
    assert done.stdout.splitlines() == [
        "Linear stays eager: this process was forked while its parent compiled, so "
        "torch's locks are held for ever", "0 ['one static graph: no size varies']"]


SHORT = """
import torch
from torch import nn
import harp.ttf
module = harp.ttf.compile(nn.Linear(4, 2), learn=1, after_s=0)
for _ in range(3):
    module(torch.ones(3, 4)).sum().backward()
"""


def test_a_program_that_ends_before_a_compilation_says_nothing_of_it():
    done = subprocess.run([sys.executable, "-c", SHORT], capture_output=True, text=True, check=True,
                          timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("", "")


def test_the_recompile_limit_is_reported_and_eager_takes_over(caplog):
    caplog.set_level(logging.WARNING, "harp.ttf.compiler")

    class Modes(nn.Module):
        mode = 0

        def forward(self, x):
            return x + len(self.mode)

    module = Modes()
    module.mode = "m"
    compiled = harp.ttf.compile(module, backend=Graphs(), learn=1, aside=False)
    for call in range(1, 20):
        module.mode = "m" * call
        assert torch.equal(compiled(torch.zeros(3)), torch.full((3,), float(call)))
    assert "was compiled again (1)" in caplog.text
    assert caplog.text.count("met torch's recompile limit") == 1


def step_both(weights, ours, theirs, schedules):
    """Make a step of a compiled optimizer and of its twin, by the weights' own values."""
    for weight in weights:
        weight.grad = weight.detach().clone()
    ours()
    theirs.step()
    for schedule in schedules:
        schedule.step()


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


def twin_optimizers():
    """Make two optimizers that follow schedules of their own."""
    weights = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    optimizers = [torch.optim.AdamW([weight], lr=0.1) for weight in weights]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers]
    return weights, optimizers, schedules


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


SECOND_START = """
import json, sys, torch
from torch._dynamo.utils import counters
import harp.ttf
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
model = harp.ttf.compile(net, cache=sys.argv[1], learn=3, aside=False)
step = harp.ttf.compile(torch.optim.AdamW(net.parameters()), cache=sys.argv[1], aside=False)
for size in (4, 6, 8, 4, 5, 7):
    model(torch.randn(size, 8)).sum().backward()
    step()
model.wait()
print(json.dumps({"compiled": counters["inductor"]["fxgraph_cache_miss"],
                  "found": counters["inductor"]["fxgraph_cache_hit"],
                  "decisions": model.decisions()}))
"""


@long
def test_a_second_start_compiles_nothing(tmp_path):
    answers = []
    for start in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-c", SECOND_START, str(tmp_path / "kept")], check=False, text=True,
            capture_output=True, timeout=PATIENCE_S,
            env={"PATH": "/usr/bin:/bin", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / start),
                 "PYTHONPATH": ":".join(sys.path)})
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = answers
    assert first["compiled"] > 0
    assert second["compiled"] == 0
    assert second["found"] > 0
    assert second["decisions"] == first["decisions"]


SPREAD_STARTS = """
import json, sys, torch
from torch._dynamo.utils import counters
import harp.ttf
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Linear(8, 1)
model = harp.ttf.compile(net, cache=sys.argv[1], learn=1, aside=False)
for kind in sys.argv[2]:
    rows = {"a": (4, 8), "b": (2, 3, 8)}[kind]
    for _ in range(2):
        model(torch.randn(*rows)).sum().backward()
print(json.dumps(counters["inductor"]["fxgraph_cache_miss"]))
"""


@long
def test_a_start_that_adds_to_a_cache_keeps_what_others_compiled(tmp_path):
    def misses(start, kinds):
        done = subprocess.run(
            [sys.executable, "-c", SPREAD_STARTS, str(tmp_path / "kept"), kinds], check=True,
            text=True, capture_output=True, timeout=PATIENCE_S,
            env={"PATH": "/usr/bin:/bin", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / start),
                 "PYTHONPATH": ":".join(sys.path)})
        return json.loads(done.stdout.splitlines()[-1])
    assert misses("first", "a") > 0
    assert misses("second", "b") > 0
    assert misses("third", "ab") == 0


class Steps(nn.Module):
    """A number among the arguments, as a step of a diffusion model."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.config = {"width": 4}

    def forward(self, x, step):
        return self.net(x) * step


def test_numbers_that_change_leave_no_plan_for_each_call(caplog):
    module, eager = Steps(), Steps()
    eager.load_state_dict(module.state_dict())
    compiled = harp.ttf.compile(module, backend=Graphs())
    x = torch.randn(3, 4)
    for step in range(2 * MOST_PLANS):
        assert torch.equal(compiled(x, step), eager(x, step))
    assert len(compiled._plans) == MOST_PLANS
    assert caplog.text.count("calls of Steps differ in more than sizes and floats") == 1


def test_a_compiled_module_has_what_its_module_has():
    compiled = harp.ttf.compile(Steps())
    assert compiled.config == {"width": 4}
    assert compiled.net.weight.shape == (4, 4)
    with pytest.raises(AttributeError, match="'Steps' object has no attribute 'nothing'"):
        _ = compiled.nothing
    assert copy.deepcopy(compiled).config == {"width": 4}


def test_a_cache_that_cannot_be_read_is_a_warning(tmp_path, caplog):
    (tmp_path / "decisions.json").write_text("{")
    module, eager = twins(Rows)
    compiled = settled(module, Graphs(), cache=tmp_path)
    assert "holds no decisions that can be read" in caplog.text
    compare(compiled, eager, [4] * 8)


@pytest.mark.parametrize(("make", "error", "sentence"), [
    (lambda: harp.ttf.compile(len), TypeError, "takes a module or an optimizer"),
    (lambda: harp.ttf.compile(torch.optim.SGD([nn.Parameter(torch.ones(1))]), horizon=0),
     ValueError, "horizon is 0; it must be at least 1"),
    (lambda: harp.ttf.compile(Rows(), learn=0), ValueError, "learn is 0; it must be at least 1"),
    (lambda: harp.ttf.compile(Rows(), horizon=None), ValueError,
     "horizon is None; it must be at least 1$"),
    (lambda: harp.ttf.compile(Rows(), after_s="soon"), ValueError,
     "after_s is 'soon'; it must be at least 0, or None"),
    (lambda: harp.ttf.compile(Rows(), after_s=-1), ValueError, "after_s is -1; it must be at"),
    (lambda: harp.ttf.compile(torch.optim.SGD([nn.Parameter(torch.ones(1))]), after_s=-1),
     ValueError, "after_s is -1; it must be at least 0, or None")])
def test_a_mistake_is_one_sentence(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()
