"""torch's stores where ranks meet: waits are quiet, and their ends are sentences."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from harp.lightcc.torch_base.torch_store import (  # noqa: E402
    PatientStore,
    in_part,
    open_file,
    open_master,
    round_of,
)
from tests.support.free_ports import free_ports  # noqa: E402


@pytest.mark.parametrize("kind", ["tcp", "file", "hash"])
def test_a_wait_for_a_late_rank_writes_no_warnings(kind, tmp_path, capfd):
    store = {"tcp": lambda: dist.TCPStore("127.0.0.1", 0, is_master=True),
             "file": lambda: dist.FileStore(str(tmp_path / "store")),
             "hash": dist.HashStore}[kind]()
    patient = PatientStore(dist.PrefixStore("group", store), timedelta(seconds=0.5))
    with pytest.raises(TimeoutError):
        patient.get("late")
    patient.set("come", b"here")
    assert patient.get("come") == b"here"
    assert capfd.readouterr() == ("", "")


def test_a_store_that_is_gone_is_asked_once(capfd):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    patient = PatientStore(dist.PrefixStore("group", dist.TCPStore("127.0.0.1", store.port)),
                           timedelta(seconds=60))
    del store
    for _ in range(3):
        with pytest.raises(ConnectionError, match=r"the store at 127.0.0.1:\d+ is gone"):
            patient.has("key")
    assert capfd.readouterr().err.count("[c10d]") == 1  # torch's own words, of many lines


def test_groups_of_ones_own_agent_have_a_part_of_its_store_for_each_restart_and_time():
    store = dist.HashStore()
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    again = {**agent, "TORCHELASTIC_RESTART_COUNT": "1"}
    parts = [round_of(store, rank, 2, env) for env in (agent, agent, again) for rank in (0, 1)]
    assert parts == ["harp/0/2/1"] * 2 + ["harp/0/2/2"] * 2 + ["harp/1/2/1"] * 2
    assert round_of(store, 0, 2, {}) == ""
    for part in (parts[0], parts[2]):
        in_part(store, part).set("key", part)
    assert [in_part(store, part).get("key").decode() for part in parts[:4]] == parts[:4]
    assert in_part(store, "") is store


def test_ranks_meet_in_a_file_that_both_see(tmp_path):
    one, other = (open_file(str(tmp_path / "store"), 2, 30.0) for _ in range(2))
    assert not one.has("key")
    other.set("key", b"\x00value")
    assert one.has("key")
    assert one.get("key") == b"\x00value"


def test_rank_0_serves_the_store_at_the_address_of_the_master():
    port, = free_ports(1, socket.SOCK_STREAM)
    said = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    stores = [open_master(said, rank, 2, 30.0) for rank in range(2)]
    stores[1].set("key", b"value")
    assert stores[0].get("key") == b"value"
