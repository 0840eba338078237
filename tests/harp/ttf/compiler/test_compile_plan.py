"""Calls of one key: the graphs that they run in, by what these cost."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from harp.ttf.compiler import compile_plan  # noqa: E402
from harp.ttf.compiler.variants import Variant  # noqa: E402
from tests.harp.ttf.compiler.eager_twins import (  # noqa: E402
    Graphs,
    Mean,
    Rows,
    compare,
    settled,
    twins,
)

# Torch's own, when it loads inductor.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


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
