"""``harp.ttf.compile``: results and gradients of eager, in as few graphs as there can be.

The backend is dynamo's with torch's eager kernels where the number of graphs matters, and inductor
where compiled code is kept.
"""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import harp.ttf  # noqa: E402
from harp.ttf.compiler.compiled import MOST_PLANS  # noqa: E402
from tests.harp.ttf.compiler.eager_twins import (  # noqa: E402
    Graphs,
    Rows,
    compare,
    settled,
    twins,
)
from tests.support import PATIENCE_S  # noqa: E402

# Torch's own, when it loads inductor.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


def test_calls_run_while_compilation_runs_aside():
    module, eager = twins(Rows)
    graphs = Graphs()
    compiled = harp.ttf.compile(module, backend=graphs, learn=2, after_s=0)
    compare(compiled, eager, [4] * 2)
    compare(compiled, eager, [4] * 3)
    compiled.wait()
    compare(compiled, eager, [4] * 3)
    assert graphs.static == 1


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
