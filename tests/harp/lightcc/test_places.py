"""Ranks that share memory; the others communicate as ranks of different hosts do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from harp.lightcc.store import StoreServer
from lab.namespace import why_unusable
from tests.harp.lightcc.test_group import PATIENCE_S

RANK = "tests.harp.lightcc.place_rank"


def processes(store, ranks, *words, apart=None):
    """Start ranks, one of them in a process space of its own."""
    space = ["unshare", "--pid", "--fork"]
    return [subprocess.Popen([*(space if rank == apart else ()), sys.executable, "-m", RANK,
                              store.variable("127.0.0.1"), str(rank), str(ranks), *words],
                             stdout=subprocess.PIPE, text=True) for rank in range(ranks)]


def answers_of(begun):
    """Give what those ranks printed that were not killed.

    All are waited for before one is judged: a pipe that is left is a warning in a later test.
    """
    said = [one.communicate(timeout=PATIENCE_S)[0] for one in begun]
    return [json.loads(one) for one in said if one]


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_ranks_of_different_users_talk_as_those_of_different_hosts_do():
    """They may not open each other's shared memory."""
    with StoreServer() as store:
        begun = processes(store, 3, "user=1")
        answers = answers_of(begun)
    assert [answer["near"] for answer in answers] == [[2], [], [0]]
    assert all(answer["right"] for answer in answers)


@pytest.mark.skipif(bool(why_unusable()), reason=str(why_unusable()))
def test_a_place_is_a_network_space_of_a_host_whatever_its_name():
    ask = [sys.executable, "-c", "from harp.lightcc.peers import memory_place as own; print(own())"]
    here, again, elsewhere, other_pids = [
        subprocess.run([*before, *ask], capture_output=True, text=True, check=True).stdout
        for before in ([], [], ["unshare", "--net"], ["unshare", "--pid", "--fork"])]
    assert here == again == other_pids
    assert elsewhere != here
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]
    assert subprocess.run([*renamed, *ask], capture_output=True, text=True,
                          check=True).stdout == here


@pytest.mark.skipif(bool(why_unusable()), reason=str(why_unusable()))
def test_ranks_in_process_spaces_of_their_own_share_memory():
    """As those of containers do that share /dev/shm and the network."""
    with StoreServer() as store:
        begun = processes(store, 3, "user=-1", apart=1)
        answers = answers_of(begun)
    assert [answer["near"] for answer in answers] == [[1, 2], [0, 2], [0, 1]]
    assert all(answer["right"] for answer in answers)


def test_a_rank_that_is_killed_while_others_wait_for_it_is_named():
    with StoreServer() as store:
        begun = processes(store, 3, "killed=1")
        answers = answers_of(begun)
    assert begun[1].returncode == -signal.SIGKILL
    assert ["rank 1 is gone" in answer["error"] for answer in answers] == [True, True]
