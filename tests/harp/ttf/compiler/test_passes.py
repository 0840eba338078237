"""Graph passes: results and gradients of eager, in fewer calls."""

from __future__ import annotations

import copy

import pytest
import torch
from functorch.compile import (
    make_boxed_func,
    min_cut_rematerialization_partition,
)
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.utils import fresh_cache

import harp.ttf
from harp.ttf.compiler import passes
from harp.ttf.embedding import (
    SGD,
    DynamicEmbedding,
    DynamicEmbeddingBag,
    TableOptimizer,
)
from tests.support.levels import long, long_except

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


class Calls:
    """A backend that keeps what the last graph calls, as the passes left it."""

    def __init__(self):
        self.called = []

    def __call__(self, graph, inputs, **_):
        self.called = [str(getattr(node.target, "__name__", node.target))
                       for node in graph.graph.nodes if node.op.startswith("call")]
        return graph.forward

    def count(self, name):
        return sum(called == name for called in self.called)


def both(module, *inputs, backend=None):
    """Run a module eagerly and compiled, and hold results and gradients against each other."""
    twin = copy.deepcopy(module)
    calls = backend or Calls()
    compiled = harp.ttf.compile(twin, backend=calls, learn=1, aside=False)
    compiled(*inputs)
    found, right = compiled(*inputs), module(*inputs)
    torch.testing.assert_close(found, right)
    (found * torch.arange(found.numel()).reshape(found.shape)).sum().backward()
    (right * torch.arange(right.numel()).reshape(right.shape)).sum().backward()
    for one, other in zip(twin.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    return calls


class Gates(nn.Module):
    """Small layers over one input, one over another, and a large one."""

    def __init__(self, *, bias=True):
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(16, width, bias=bias) for width in (4, 2, 3))
        self.after, self.large = nn.Linear(4, 4), nn.Linear(16, 2048)

    def forward(self, x):
        parts = [gate(x) for gate in self.gates]
        return torch.cat([*parts[:2], parts[2].view(-1, 3), self.after(parts[0]), self.large(x)],
                         -1)


@pytest.mark.parametrize("bias", long_except([True, False], True))
def test_small_layers_over_one_input_are_one_product(bias):
    torch.manual_seed(0)
    calls = both(Gates(bias=bias), torch.randn(5, 16))
    assert calls.count("linear") == 3


def test_bags_of_one_length_are_gathered_for_inductor_to_fuse():
    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(20, 4, mode=mode)
                                      for mode in ("sum", "mean", "max"))

        def forward(self, ids):
            return torch.cat([bag(ids) for bag in self.bags], 1)

    torch.manual_seed(0)
    calls = both(Bags(), torch.randint(0, 20, (6, 3)))
    assert (calls.count("embedding"), calls.count("embedding_bag")) == (2, 1)


class Casts(nn.Module):
    """One tensor cast by the model, and by autocast for two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(200, 200), nn.Linear(200, 200)

    def forward(self, x):
        y = x.to(torch.bfloat16).exp() + x.to(torch.bfloat16)
        with torch.autocast("cpu", torch.bfloat16):
            return y + self.first(x) * self.second(x)


def casts_of(graph):
    return sum(str(node.target) in ("aten._to_copy.default",
                                    "prims.convert_element_type.default")
               for node in graph.graph.nodes)


@pytest.mark.parametrize("grad", [True, False])
def test_a_cast_is_made_once(grad):
    casts, right = [], Casts()

    def compiler(graph, inputs):
        assert grad or casts_of(graph) > 5
        passes.ShareCasts()(graph.graph)
        casts.append(casts_of(graph))
        graph.recompile()
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, inference_compiler=compiler,
                           partition_fn=min_cut_rematerialization_partition)
    compiled = harp.ttf.compile(right, backend=backend, learn=1, aside=False)
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            x = torch.randn(8, 200)
            torch.testing.assert_close(compiled(x), right(x))
    assert casts[0] == 5, "x, and two weights with their biases"


@long
def test_inductor_shares_casts_without_gradients(monkeypatch):
    seen = []
    share = passes.ShareCasts.__call__

    def watched(self, graph):
        before = len(graph.nodes)
        share(self, graph)
        seen.append(before - len(graph.nodes))
    monkeypatch.setattr(passes.ShareCasts, "__call__", watched)
    module = Casts()
    compiled = harp.ttf.compile(module, learn=1, aside=False)
    with fresh_cache(), torch.no_grad():
        for _ in range(2):
            x = torch.randn(8, 200)
            torch.testing.assert_close(compiled(x), module(x), rtol=0.05, atol=0.05)
    assert seen == [3]


def test_a_graph_that_writes_in_place_stays_as_it_is():
    class Writes(nn.Module):
        def forward(self, x):
            return x.to(torch.float64).add_(1) + x.to(torch.float64)

    assert both(nn.Sequential(nn.Linear(3, 3), Writes()), torch.randn(2, 3)).count("to") == 2


class Tables(nn.Module):
    """Bags and single rows of several tables, one of whose ids depend on another's row."""

    def __init__(self):
        super().__init__()
        self.one, self.two = (DynamicEmbeddingBag(width, mode=mode, optimizer=SGD(lr=0.1), seed=7)
                              for width, mode in ((4, "sum"), (3, "mean")))
        self.rows, self.late = (DynamicEmbedding(2, optimizer=SGD(lr=0.1), seed=seed)
                                for seed in (8, 9))
        self.out = nn.Linear(11, 2)

    def forward(self, bags, ids):
        one = self.one(bags)
        late = self.late((one[:, 0] > 0).long())
        return self.out(torch.cat([one, self.two(bags + 5), self.rows(ids), late], 1))


def trained(compiled):
    """Train, with the sizes of batches in turn; give losses and what the tables have then."""
    torch.manual_seed(0)
    model, calls = Tables(), Calls()
    run = harp.ttf.compile(model, backend=calls, learn=2, aside=False) if compiled else model
    optimizers = [torch.optim.SGD(model.out.parameters(), lr=0.1), TableOptimizer(model)]
    losses = []
    for step in range(8):
        size = 3 + step % 3
        ids = torch.arange(2 * size).reshape(size, 2) * (10**15 + step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = run(ids, ids[:, 0]).square().sum()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.detach())
    rows = [sorted((int(head["key"]), *map(float, values)) for heads, floats in table.table.read()
                   for head, values in zip(heads, floats, strict=True))
            for table in (model.one, model.two, model.rows, model.late)]
    return losses, rows, calls


def test_tables_are_looked_up_in_one_call_and_a_trial_leaves_them_alone():
    losses, rows, _ = trained(compiled=False)
    found, other_rows, calls = trained(compiled=True)
    torch.testing.assert_close(found, losses)
    for one, other in zip(other_rows, rows, strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other))
    assert sum("embed" in called for called in calls.called) == 2, calls.called


def test_nodes_that_depend_on_one_another_are_not_grouped():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    one = graph.call_function(torch.sin, (x,))
    two = graph.call_function(torch.cos, (one,))
    three = graph.call_function(torch.tan, (x,))
    assert passes._groups([one, two, three], lambda _: "all") == [[one, three]]
