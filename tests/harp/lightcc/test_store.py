"""The rendezvous store: shared by all that know its token, at any address."""

from __future__ import annotations

import socket
import threading

import pytest

from harp.lightcc.store import MemoryStore, PrefixStore, StoreClient, StoreServer, open_store
from tests.support import PATIENCE_S


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6")
def test_a_store_at_all_addresses_is_reached_by_both_families():
    server = StoreServer("")
    try:
        StoreClient(server.variable("::1"), 30).set("key", b"value")
        assert StoreClient(server.variable("127.0.0.1"), 30).get("key") == b"value"
    finally:
        server.shutdown()
        server.server_close()


def test_a_store_is_shared_and_wants_its_token():
    server = StoreServer()
    try:
        variable = server.variable("127.0.0.1")
        one, other = (PrefixStore("job/", StoreClient(variable, 30)) for _ in range(2))
        one.set("key", b"\x00value")
        assert other.get("key") == b"\x00value"
        assert server.store.find("job/") == ["key"]
        stranger = StoreClient(variable[:-1] + ("0" if variable[-1] != "0" else "1"), 30)
        with pytest.raises(ConnectionError):
            stranger.set("key", b"")
        with pytest.raises(ValueError, match="HARP_STORE is 'here'"):
            StoreClient("here", 1)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("path", ["no/store", "", "."])
def test_a_store_that_no_rank_can_make_is_one_sentence(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"HARP_STORE is 'file:{path}'; allowed after file: is"):
        open_store({"HARP_STORE": f"file:{path}"}, 0, 2, 0.1)


def exercised(store):
    """Set, look and decide, and give what was found."""
    found = [store.has("a")]
    store.set("a", b"1")
    store.set("a", b"2")
    return [*found, store.has("a"), store.get("a"), store.settle("a", b"3"),
            store.settle("b", b"4"), store.settle("b", b"5"), store.get("b")]


def test_stores_of_one_process_and_of_a_server_do_the_same():
    with StoreServer() as server:
        client = exercised(StoreClient(server.variable("127.0.0.1"), 30))
        server.shutdown()
    assert client == exercised(MemoryStore())
    assert client == [False, True, b"2", b"2", b"4", b"4", b"4"]


def test_a_get_waits_until_another_one_has_set_the_key():
    store, found = MemoryStore(), []
    waiting = threading.Thread(target=lambda: found.append(store.get("late")))
    waiting.start()
    store.set("late", b"here")
    waiting.join(PATIENCE_S)
    assert found == [b"here"]


def test_the_end_of_a_server_is_named_with_its_address():
    with StoreServer() as server:
        client = StoreClient(server.variable("127.0.0.1"), 30)
        server.shutdown()
    with pytest.raises(ConnectionError):
        client.get("key")


def test_one_rank_needs_no_launchers_store():
    assert isinstance(open_store({}, 0, 1, 0.1), MemoryStore)
    assert isinstance(open_store({"HARP_STORE": "[::1]:99/token"}, 0, 2, 0.1), StoreClient)
