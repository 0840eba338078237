"""Fixtures that tests of ``harp plan`` share."""

from __future__ import annotations

import pytest

from tests.harp.cli.plan.planned import FABRIC
from tests.support.cluster_files import topology, write_job


@pytest.fixture
def job(tmp_path):
    """Write a job of eight hosts and its topology; give the job's path."""
    def made(*, fabric=FABRIC, gpus=1, nic=None, hosts=8, **keys):
        return write_job(tmp_path, topology(hosts=hosts, gpus=gpus, nic=nic, fabric=fabric),
                         **keys)
    return made
