"""Collectives on one tensor a rank, over a group of one rank and any backend."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed

from harp.lightcc.torch_base.single import (  # noqa: E402
    all_gather_single,
    reduce_scatter_single,
)


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_no_call_warns_of_a_name_that_torch_gave_up():
    part, whole = torch.arange(3.0), torch.zeros(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        all_gather_single(whole, part)
        reduce_scatter_single(part, whole * 2)
    assert whole.tolist() == [0, 1, 2]
    assert part.tolist() == [0, 2, 4]


@pytest.mark.usefixtures("alone")
def test_an_older_torch_is_called_by_its_names(monkeypatch):
    for name in ("all_gather_single", "reduce_scatter_single"):
        monkeypatch.delattr(dist, name, raising=False)
    called = []
    monkeypatch.setattr(dist, "all_gather_into_tensor", lambda *_, **more: called.append(more))
    monkeypatch.setattr(dist, "reduce_scatter_tensor", lambda *_, **more: called.append(more))
    all_gather_single(torch.zeros(2), torch.zeros(2), async_op=True)
    reduce_scatter_single(torch.zeros(2), torch.zeros(2), group=None)
    assert called == [{"async_op": True}, {"group": None}]
