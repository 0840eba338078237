"""Synchronous collectives on torch's tensors."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

import harp.lightcc.horovod.torch as hvd


@pytest.mark.parametrize("of", [torch.conj, lambda data: torch.imag(torch.conj(data))])
def test_conjugates_and_negatives_are_sent_as_they_are_seen(of, alone):
    seen = of(torch.tensor([1 + 2j, 3 - 4j]))
    for result in (hvd.allreduce(seen, op=hvd.Sum), hvd.allgather(seen), hvd.broadcast(seen, 0),
                   hvd.alltoall(seen), hvd.reducescatter(seen, op=hvd.Sum),
                   hvd.allreduce_(seen, op=hvd.Sum), seen):
        assert result.tolist() == of(torch.tensor([1 + 2j, 3 - 4j])).tolist()
