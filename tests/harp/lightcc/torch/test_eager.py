"""Methods that torch.compile is not to trace."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounter  # noqa: E402

from harp.lightcc.torch.eager import eager  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


@eager
class Skipped:
    def add(self, x):
        return x.sin() + 1


class Traced:
    def add(self, x):
        return x.sin() + 1


@pytest.mark.parametrize(("cls", "graphs"), [(Skipped, 0), (Traced, 1)])
def test_dynamo_makes_no_graph_of_a_method(cls, graphs):
    counter = CompileCounter()
    compiled = torch.compile(cls().add, backend=counter)
    assert torch.equal(compiled(torch.zeros(3)), torch.ones(3))
    assert counter.frame_count == graphs
