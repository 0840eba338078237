"""Jobs of several ranks, and a job of one."""

from __future__ import annotations

from pathlib import Path

import pytest

RANK = Path(__file__).with_name("horovod_rank.py")


@pytest.fixture
def job(tmp_path):
    """Run a function of horovod_rank.py at ranks that meet by a file; give what each found."""
    from tests.support.torch_ranks import answers_of, start

    def run_ranks(ranks, what, **variables):
        return answers_of(start(RANK, what, ranks, HARP_STORE=f"file:{tmp_path / 'store'}",
                                **variables))
    return run_ranks


@pytest.fixture
def alone():
    """Begin Horovod's API in this process, the only rank."""
    import harp.lightcc.horovod.torch as hvd

    hvd.init()
    yield
    hvd.shutdown()
