"""A job of torch's with one rank."""

from __future__ import annotations

import pytest


@pytest.fixture
def one_rank():
    """Begin torch's groups over gloo in this process, the only rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
