"""DDP's join over works of Python: it is given works of C++."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.join import Join  # noqa: E402

from harp.lightcc.torch.join import patch_join  # noqa: E402


class Own(dist.Work):
    """A work of Python with a future of torch's."""

    def __init__(self):
        super().__init__()
        self.future = torch.futures.Future()

    def get_future(self):
        return self.future


def test_a_work_of_python_becomes_one_of_cpp_that_completes_with_its_future(monkeypatch):
    own, other = Own(), object()
    monkeypatch.setattr(Join, "notify_join_context", staticmethod(lambda joinable: joinable))
    patch_join(Own)
    made = Join.notify_join_context(own)
    assert isinstance(made, dist.Work)
    assert not isinstance(made, Own)
    assert not made.is_completed()
    own.future.set_result([torch.tensor([2.0])])
    assert made.wait()
    assert made.is_success()
    assert [one.item() for one in made.result()] == [2.0]
    assert Join.notify_join_context(other) is other
    assert Join.notify_join_context(None) is None
