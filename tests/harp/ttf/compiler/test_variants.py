"""Compiled variants: one compilation at a time, and torch's limit is never silent."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import harp.ttf  # noqa: E402
from harp.ttf.compiler.variants import (  # noqa: E402
    Changes,
    gradients_too,
    in_tensors,
    numbers,
    tensors_for,
)
from tests.harp.ttf.compiler.eager_twins import Graphs  # noqa: E402
from tests.support import PATIENCE_S  # noqa: E402

# Torch's own, when it loads inductor.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")

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


class Counted(nn.Module):
    """Counts its calls and sums a float, in a module inside."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.calls, self.inner.total, self.inner.width = 0, 0.5, 3
        self.inner.flag, self.inner.name = True, "inner"


def test_numbers_that_change_are_noted_by_their_module_and_others_are_not():
    module = Counted()
    holders = [vars(module), vars(module.inner)]
    changes = Changes(numbers(holders))
    changes.look(numbers(holders))
    assert changes.places == set()
    module.inner.calls, module.inner.flag, module.inner.name = 1, False, "other"
    changes.look(numbers(holders))
    module.inner.total = 0.75
    changes.look(numbers(holders))
    assert changes.places == {(1, "calls"), (1, "total")}


def test_counters_are_tensors_while_compiled_code_runs_and_numbers_again_after_an_error():
    module = Counted()
    holders, places = [vars(module), vars(module.inner)], [(1, "calls"), (1, "total")]

    def fail():
        with in_tensors(holders, tensors_for(holders, places)):
            assert module.inner.calls.dtype == torch.int64
            assert module.inner.total.dtype == torch.float64
            module.inner.calls = module.inner.calls + 1
            module.inner.total = 7.5  # code that ran eagerly puts a number there
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (module.inner.calls, module.inner.total) == (1, 7.5)
    assert type(module.inner.calls) is int


def test_gradients_tell_outputs_in_wrong_places_apart_and_leave_none_behind():
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    found = [gradients_too({"out": weight * scale}, [weight])[0]
             for scale in (torch.tensor([1.0, 3.0]), torch.tensor([3.0, 1.0]))]
    assert weight.grad is None
    assert found[0].sum() != found[1].sum()
    assert gradients_too(torch.ones(2), [weight]) == []
