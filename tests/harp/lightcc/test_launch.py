"""Launchers' environments, as torchrun, Open MPI, MPICH and Slurm set them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harp.lightcc.launch import Place, first_host, read_master, read_place, torch_variables

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            "PMIX_NAMESPACE": "prterun-host-17@1"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "4711",
         "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[007-008,12]"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "a", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(("env", "place"), [
    ({}, Place()),
    (TORCHRUN, Place(3, 4, 1, 2, "torchrun")),
    (OPEN_MPI, Place(2, 4, 2, 4, "Open MPI")),
    (MPICH, Place(1, 2, 1, 2, "MPICH")),
    (SLURM, Place(5, 8, 1, None, "Slurm")),
    ({**SLURM, **OPEN_MPI}, Place(2, 4, 2, 4, "Open MPI")),  # mpirun in a job of Slurm
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Place())])  # a shell of sbatch
def test_a_launcher_is_recognised(env, place):
    assert read_place(env) == place


@pytest.mark.parametrize(("env", "sentence"), [
    ({"RANK": "1"}, "WORLD_SIZE is not set"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE is 2"),
    ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x'")])
def test_an_environment_that_cannot_be_is_refused(env, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_place(env)


def test_rank_0_is_found_by_what_the_launcher_says():
    assert read_master(TORCHRUN) == ("a", 29500)
    assert read_master(SLURM)[0] == "gpu007"
    assert read_master(OPEN_MPI) == read_master({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"})
    assert read_master(OPEN_MPI)[0] == "127.0.0.1"
    assert 15000 <= read_master(OPEN_MPI)[1] < 25000
    with pytest.raises(ValueError, match="MASTER_ADDR is not set"):
        read_master({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    with pytest.raises(ValueError, match="MASTER_PORT is not set"):
        read_master(MPICH)


def test_torch_hears_its_rank_where_only_the_meeting_point_is_missing():
    assert torch_variables(MPICH) == {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1",
                                      "LOCAL_WORLD_SIZE": "2"}


def test_ranks_of_mpich_on_one_host_meet_at_a_port_of_their_job(tmp_path):
    """A script of Hydra's name stands in for it: what counts is whose children the ranks are."""
    say = f"{sys.executable} -c 'import os; from harp.lightcc.launch import read_master; " \
          "print(*read_master(os.environ))'"
    proxy = tmp_path / "hydra_pmi_proxy"
    proxy.write_text(f"#!/bin/sh\n{say}\nsh -c \"{say}; true\"\n")
    proxy.chmod(0o755)
    first, second = (subprocess.run([proxy], env={**os.environ, **MPICH}, text=True, check=True,
                                    capture_output=True).stdout.splitlines() for _ in range(2))
    assert first[0] == first[1] != second[0] == second[1]
    assert first[0].startswith("127.0.0.1 ")


def test_torch_gets_its_own_variables_from_another_launcher():
    found = torch_variables(OPEN_MPI)
    assert read_place(found) == Place(2, 4, 2, 4, "torchrun")
    assert read_master(found) == read_master(OPEN_MPI)
    assert torch_variables(TORCHRUN) == torch_variables({}) == {}
    assert torch_variables({**SLURM, "MASTER_PORT": "5000"})["MASTER_ADDR"] == "gpu007"


@pytest.mark.parametrize(("nodes", "first"), [
    ("a", "a"), ("a,b", "a"), ("gpu[01-04,7],b", "gpu01"), ("r[1-2]-ib", "r1-ib"),
    ("n-1,n-2", "n-1")])
def test_the_first_of_slurms_hosts(nodes, first):
    assert first_host(nodes) == first
