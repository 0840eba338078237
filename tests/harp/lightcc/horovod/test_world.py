"""Ranks of one host, as Horovod's API counts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from harp.lightcc.horovod.horovod_settings import Settings
from harp.lightcc.horovod.world import ProcessSet, World
from harp.lightcc.launch import Place
from harp.lightcc.store import open_store
from lab.namespace import why_unusable
from tests.support.free_ports import free_ports
from tests.support.levels import long

pytest.importorskip("torch")

SAY = """
import os
from harp.lightcc.horovod.world import _exchange_hosts
from harp.lightcc.launch import read_place
from harp.lightcc.store import open_store
place = read_place(os.environ)
hosts = _exchange_hosts(place, open_store(os.environ, place.rank, place.size, 300))
print([hosts.index(host) for host in hosts])
"""

SERVE = """
import os, sys
from harp.lightcc.store import open_store
store = open_store({**os.environ, "TORCHELASTIC_USE_AGENT_STORE": ""}, 0, 2, 300)
print("ready", flush=True)
sys.stdin.read()
"""


@long
@pytest.mark.skipif(bool(why_unusable()), reason=str(why_unusable()))
def test_ranks_in_two_namespaces_are_on_two_hosts(tmp_path):
    ranks = [subprocess.Popen(
        [*(["unshare", "--net"] if rank == 2 else []), sys.executable, "-c", SAY], text=True,
        stdout=subprocess.PIPE, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3",
                                     "HARP_STORE": f"file:{tmp_path}/store"})
        for rank in range(3)]
    assert [rank.communicate(timeout=300)[0].strip() for rank in ranks] == ["[0, 0, 2]"] * 3


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_a_wait_for_a_late_rank_ends_in_one_sentence_and_no_warnings(kind, tmp_path, capfd):
    port, = free_ports(1, socket.SOCK_STREAM)
    said = {"file": {"HARP_STORE": f"file:{tmp_path}/store"},
            "tcp": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}}[kind]
    store = open_store(said, 0, 2, 0.5)
    with pytest.raises(TimeoutError, match=r"^no rank has set late in the store within 0.5 s$"):
        store.get("late")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("settings", [
    {"timeline": "nowhere/it.json"}, {"autotune": True, "autotune_log": "nowhere/it.csv"}],
    ids=["timeline", "log"])
def test_a_world_that_cannot_begin_leaves_no_group_open(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, whole = threading.enumerate(), ProcessSet()
    with pytest.raises(ValueError, match=r"nowhere/it\.\w+ cannot be written"):
        World(Place(), open_store({}, 0, 1, 5), Settings(**settings), whole, {})
    assert whole.runtime is None
    assert threading.enumerate() == before


@pytest.mark.parametrize(("agent", "who"), [
    ("", "rank 0, which has the store, is gone"),
    pytest.param("True", "the store at 127.0.0.1:{port} is gone", marks=long)])
def test_the_end_of_the_process_that_has_the_store_is_one_sentence(agent, who, monkeypatch):
    port, = free_ports(1, socket.SOCK_STREAM)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                        "TORCHELASTIC_USE_AGENT_STORE": agent}.items():
        monkeypatch.setenv(name, value)
    with subprocess.Popen([sys.executable, "-c", SERVE], text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as serving:
        assert serving.stdout.readline() == "ready\n"
        store = open_store(os.environ, 1, 2, 300)
        serving.kill()
    for ask in (lambda: store.get("key"), lambda: store.set("key", b"")):
        with pytest.raises(ConnectionError, match=f"^{who.format(port=port)}$"):
            ask()
