"""The whole file as one model."""

import pytest
from pydantic import ValidationError

from sim.schema import Problem, load
from tests.sim.schema.test_load import DATA, GOOD, SMALL, loaded


def test_names_rows_and_counts_of_a_cluster(tmp_path):
    topology = load(DATA / "good" / "everything.yaml")
    assert topology.host_names == ("a-0", "b-0")
    assert topology.hosts[0].nic_names == ("eth0", "eth1")
    assert (topology.gpu_count, topology.gpu_totals) == (16, (8, 16))
    assert topology.rows(topology.scenarios[0]) == (("one", 8), ("two", 8))
    small = loaded(tmp_path, SMALL)
    assert small.rows(small.scenarios[0]) == ((None, 16),)


def test_a_topology_cannot_be_changed():
    topology = load(GOOD[0])
    with pytest.raises(ValidationError, match="frozen"):
        topology.name = "other"


def test_a_later_stage_can_point_into_the_file():
    path = DATA / "good" / "everything.yaml"
    topology = load(path)
    error = topology.error(Problem("is odd", path=("faults", 1, "link")))
    line = path.read_text().splitlines()[error.line - 1]
    assert line[error.column - 1:].startswith("a-0/eth0->leaf0,")
    assert str(error) == f"{path}:{error.line}:{error.column}: faults[1].link: is odd"


def test_one_gpu_and_fewer_gpus_than_a_group_are_fine(tmp_path):
    scenario = ("{name: tcp, stack: rdma, gpus: [1, 4, 8, 16], allreduce: light, "
                "light: {LIGHT_2D_ALLREDUCE: 1, LIGHT_INTRA_SIZE: 8}}")
    topology = loaded(tmp_path, SMALL.replace("{name: tcp, stack: kernel-tcp}", scenario))
    assert topology.gpu_counts(topology.scenarios[0]) == (1, 4, 8, 16)
