"""Peers that come and go, as threads of one process, against numpy where nothing is by chance."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from harp.lightcc.heartbeat import Heartbeat
from harp.lightcc.outer import DiLoCo, Islands, LocalSGD, Peers, SparseLoCo, StreamingDiLoCo
from harp.lightcc.outer.meeting import Meeting
from harp.lightcc.peers import Peers as PeersOfGroup
from harp.lightcc.store import MemoryStore, PrefixStore, StoreServer
from tests.harp.lightcc.outer import reference
from tests.harp.lightcc.outer.quadratic import ELEMENTS, Quadratic
from tests.support import ROOT
from tests.support.levels import long

PATIENCE_S = 120.0
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


class Trained:
    """A peer: data of its island, model and outer optimizer."""

    def __init__(self, make, island, peers):
        self.island, self.peers = island, peers
        self.model = Quadratic(island)
        self.outer = make(self.model, torch.optim.SGD(self.model.parameters(), reference.INNER),
                          peers=peers)

    def train(self, steps):
        for _ in range(steps):
            self.outer.optimizer.zero_grad()
            data = [torch.tensor(one, dtype=torch.float32) for one in
                    reference.draw(self.island, self.outer.steps + 1, ELEMENTS)]
            self.model(*data).backward()
            self.outer.step()

    @property
    def values(self):
        return torch.cat([one.detach().reshape(-1) for one in self.model.parameters()]).numpy()


def begin(make, count, **options):
    """Peers that begin together, numbered as their islands are."""
    store, turns = MemoryStore(), [threading.Event() for _ in range(count + 1)]
    turns[0].set()

    class InTurn:
        """Lets peers come in the order of their islands."""

        def __init__(self, island):
            self.island = island

        def __getattr__(self, name):
            return getattr(store, name)

        def settle(self, key, value):
            if key.startswith("member/"):
                assert turns[self.island].wait(PATIENCE_S)
            found = store.settle(key, value)
            if key.startswith("member/") and found == value:
                turns[self.island + 1].set()
            return found

    def one(island):
        options_of = {"deadline_s": PATIENCE_S, "timeout_s": 30.0} | options
        return Trained(make, island, Peers(count, store=InTurn(island), **options_of))
    with ThreadPoolExecutor(count) as pool:
        return store, list(pool.map(one, range(count)))


def begin_bare(count, **options):
    """Peers without a model."""
    store = MemoryStore()
    peers = [Peers(count, store=store, timeout_s=30.0, **options) for _ in range(count)]
    together(*(lambda one=one: one.start([np.zeros(4, np.uint8)], lambda: 0) for one in peers))
    return store, sorted(peers, key=lambda one: one.me)


def together(*work):
    with ThreadPoolExecutor(len(work)) as pool:
        return [done.result(PATIENCE_S) for done in [pool.submit(one) for one in work]]


def leave(*trained):
    together(*(one.peers.close for one in trained))


def check_anchors(*trained):
    anchors = [[fragment.anchor.numpy().tobytes() for fragment in one.outer._fragments]
               for one in trained]
    assert all(one == anchors[0] for one in anchors)


def check_equal(*trained):
    """The state that all have in common; a fragment may have been trained since."""
    check_anchors(*trained)
    if len(trained[0].outer._fragments) == 1:
        assert len({one.values.tobytes() for one in trained}) == 1


def test_peers_that_all_come_do_what_islands_do():
    _, three = begin(lambda *of, **more: DiLoCo(*of, 3, **more), 3)
    check_equal(*three)
    together(*(lambda one=one: one.train(12) for one in three))
    wanted = reference.diloco(3, 12, ELEMENTS, 3, 0.7, 0.9)
    np.testing.assert_allclose(three[0].values, wanted[0], **CLOSE)
    check_equal(*three)
    assert [one.peers.number for one in three] == [4, 4, 4]
    leave(*three)


@pytest.mark.parametrize("make", [
    lambda *of, **more: LocalSGD(*of, 4, **more),
    lambda *of, **more: StreamingDiLoCo(*of, 4, fragments=2, delay=0, **more),
    lambda *of, **more: StreamingDiLoCo(*of, 4, fragments=2, delay=0, bits=4, **more),
    lambda *of, **more: DiLoCo(*of, 4, bits=2, **more),
    lambda *of, **more: SparseLoCo(*of, 4, keep=8, chunk=16, **more)],
    ids=["local SGD", "streaming", "streaming 4 bits", "DiLoCo 2 bits", "sparse"])
def test_every_method_has_peers_equal_after_a_round(make):
    _, two = begin(make, 2)
    together(*(lambda one=one: one.train(8) for one in two))
    check_equal(*two)
    leave(*two)


def test_a_peer_with_other_settings_is_refused():
    store, two = begin(lambda *of, **more: DiLoCo(*of, 3, **more), 2)
    with pytest.raises(ValueError, match=r"^peers do not agree: every is 3 at the first one and 4 "
                                         r"here; lr is 0.7 at the first one and 0.5 here$"):
        Trained(lambda *of, **more: DiLoCo(*of, 4, lr=0.5, **more), 2, Peers(2, store=store))
    leave(*two)


def test_a_round_goes_on_by_weight_without_a_peer_that_left():
    _, three = begin(lambda *of, **more: LocalSGD(*of, 2, **more), 3, deadline_s=1.0)
    three[1].peers.weight = 3.0
    together(*(lambda one=one: one.train(2) for one in three))
    values = reference.start(ELEMENTS)
    own = [values] * 3
    for step in (1, 2):
        own = [reference.inner_step(one, island, step) for island, one in enumerate(own)]
    mean = np.average(own, axis=0, weights=[1, 3, 1])
    np.testing.assert_allclose(three[0].values, mean, **CLOSE)
    leave(three[2])
    together(*(lambda one=one: one.train(2) for one in three[:2]))
    own = [mean] * 2
    for step in (3, 4):
        own = [reference.inner_step(one, island, step) for island, one in enumerate(own)]
    np.testing.assert_allclose(three[0].values, np.average(own, axis=0, weights=[1, 3]), **CLOSE)
    check_equal(*three[:2])
    assert three[0].peers.members == (0, 1)
    leave(*three[:2])


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_rounds_in_few_bits_lose_nothing_when_a_peer_misses_them(bits):
    """What came and what peers keep is what they gave, by weights; numpy adds it up."""
    elements = 3000
    _, three = begin_bare(3, deadline_s=0.5)
    three[1].weight = 3.0
    random = np.random.default_rng(bits)
    errors = [np.zeros(elements, np.float32) for _ in three]
    given, came = np.zeros(elements), np.zeros(elements)
    for members in ((0, 1, 2), (0, 1, 2), (0, 1), (0, 1), (0, 1)):
        vectors = [random.normal(size=elements).astype(np.float32) for _ in three]
        if len(members) == 2 and three[2] is not None:
            three[2].close()  # what it had not sent goes with it
            given -= errors[2]
            three[2] = None
        means = together(*(lambda i=i, own=vectors[i]: three[i].mean_in_few_bits(
            own, errors[i], bits, 0.5) for i in members))
        assert len({mean.tobytes() for mean in means}) == 1
        assert three[0].members == members
        weights = [0.5 * three[i].weight for i in members]
        given += sum(weight * vectors[i] for i, weight in zip(members, weights, strict=True))
        came += means[0].astype(float) * sum(weights)
    np.testing.assert_allclose(came + errors[0] + errors[1], given, atol=1e-4)
    assert np.abs(errors[0]).max() > 0
    together(*(one.close for one in three[:2]))


def test_an_attempt_that_failed_leaves_what_was_not_sent(monkeypatch):
    _, two = begin_bare(2, deadline_s=60.0)
    vectors = [np.random.default_rng(i).normal(size=900).astype(np.float32) for i in range(2)]
    errors = [np.full(900, 0.25, np.float32) for _ in range(2)]
    failed = []

    def fail_once(self, group, name):
        made = Peers._group_of(self, group, name)
        if len(failed) < 2:
            failed.append(name)
            allgather = made.allgather

            def breaks(data):
                allgather(data).result(60)
                raise TimeoutError("as if a peer had died")
            made.allgather = breaks
        return made
    for one in two:
        monkeypatch.setattr(one, "_group_of", lambda group, name, one=one: fail_once(
            one, group, name))
    means = together(*(lambda one=one, own=own, error=error: one.mean_in_few_bits(
        own, error, 8, 1.0) for one, own, error in zip(two, vectors, errors, strict=True)))
    assert failed == ["1.0", "1.0"]
    np.testing.assert_allclose(means[0] * 2 + errors[0] + errors[1],
                               vectors[0] + vectors[1] + 0.5, atol=1e-5)
    together(*(one.close for one in two))


def test_a_late_peer_and_a_new_one_take_the_newest_state_and_go_on_with_the_others(caplog):
    caplog.set_level(logging.INFO, "harp.lightcc")
    make = partial(DiLoCo, every=2)
    store, (first, second) = begin(make, 2, deadline_s=0.5)
    caplog.clear()
    first.train(6)  # three rounds alone
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "round 1 goes on without peer 1: it did not come in time")]
    assert (first.peers.number, first.peers.members) == (3, (0,))
    second.train(2)  # is late for the first
    assert second.peers.number == 3
    check_equal(first, second)
    first.peers._meeting._deadline_s = second.peers._meeting._deadline_s = PATIENCE_S
    third = Trained(make, 2, Peers(2, store=store, deadline_s=PATIENCE_S, timeout_s=30.0))
    check_equal(first, second, third)
    together(*(lambda one=one: one.train(4) for one in (first, second, third)))
    check_equal(first, second, third)
    assert first.peers.members == third.peers.members == (0, 1, 2)
    assert {("INFO", f"peer {one} comes in round {first.peers.number - 1}") for one in (1, 2)} <= {
        (one.levelname, one.getMessage()) for one in caplog.records}
    leave(first, second, third)


class Unreachable:
    """A store whose peers seem to answer where nobody does, as behind a firewall."""

    def __init__(self, store):
        self._store, self.hides = store, True

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, key):
        found = self._store.get(key)
        return b'["127.0.0.1", 1]' if self.hides and key.startswith("member/") else found


def test_a_peer_that_reaches_no_other_one_leaves_their_rounds_to_them(caplog):
    """It goes on alone, as if they had ended; their state is not its own, and stays theirs."""
    make = partial(DiLoCo, every=2)
    store, (first, second) = begin(make, 2)
    together(*(lambda one=one: one.train(2) for one in (first, second)))
    hiding = Unreachable(store)
    third = Trained(make, 2, Peers(2, store=hiding, deadline_s=PATIENCE_S, timeout_s=30.0))
    assert "peer 2 reaches no other one, and goes on alone after round 1" in caplog.text
    third.train(2)
    assert third.peers.members == (2,)
    together(*(lambda one=one: one.train(4) for one in (first, second)))
    check_equal(first, second)
    np.testing.assert_allclose(first.values, reference.diloco(2, 6, ELEMENTS, 2, 0.7, 0.9)[0],
                               **CLOSE)
    third.train(4)  # late again, and again alone: they are not waited for, nor is it
    hiding.hides, third.peers._meeting._addresses = False, []
    third.train(2)
    check_equal(first, second, third)
    together(*(lambda one=one: one.train(2) for one in (first, second, third)))
    check_equal(first, second, third)
    assert first.peers.members == (0, 1, 2)
    leave(first, second, third)


def test_a_checkpoint_that_is_loaded_goes_whole_to_a_new_peer():
    make = partial(DiLoCo, every=2)
    store, (first,) = begin(make, 1)
    checkpoint = first.outer.state_dict()
    first.train(2)

    def come(island):
        return Trained(make, island, Peers(1, store=store, deadline_s=PATIENCE_S, timeout_s=5.0))
    leave(come(1))  # for which the hash of this state was made
    first.outer.load_state_dict(checkpoint)
    second = come(2)
    check_anchors(first, second)
    leave(first, second)


PEER = """
import sys
import numpy as np
from harp.lightcc.outer import Peers
from harp.lightcc.store import StoreClient
peers = Peers(2, deadline_s=300, timeout_s=20, store=StoreClient(sys.argv[1], 60))
peers.start([np.zeros(4, np.uint8)], lambda: 0)
print(peers.me, flush=True)
while peers.mean(np.ones(1 << 20, np.float32), 1.0) is not None:
    print(peers.number, *peers.members, flush=True)
"""


@long
def test_a_peer_that_is_killed_in_an_exchange_is_left_out():
    with StoreServer() as server:
        variable = server.variable("127.0.0.1")
        started = [subprocess.Popen([sys.executable, "-c", PEER, variable], text=True, cwd=ROOT,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                   for _ in range(2)]
        try:
            killed, left = sorted(started, key=lambda one: -int(one.stdout.readline()))
            for process in (killed, left):
                assert process.stdout.readline() == "1 0 1\n"
            killed.kill()
            assert any(line.endswith(" 0\n") for line in iter(left.stdout.readline, ""))
            left.kill()
            said = left.communicate()[1]
            assert re.search(r"^round \d+ goes on without peer 1: it is gone: .+$", said, re.M)
        finally:
            for process in started:
                process.kill()
                process.communicate()
        server.shutdown()


def test_a_peer_that_is_killed_while_the_group_is_made_is_left_out(monkeypatch):
    monkeypatch.setattr("harp.lightcc.peers.LOOK_S", 0.1)
    monkeypatch.setattr(PeersOfGroup, "dead_s", 1.0)
    store = MemoryStore()
    both = [Peers(3, store=store, timeout_s=10 * PATIENCE_S) for _ in range(2)]

    def die():
        dead = Meeting(store, "nowhere", PATIENCE_S, PATIENCE_S)
        dead.found(3)
        place = dead.gather(0, 0).numbers.index(dead.number)
        Heartbeat(place, 3, PrefixStore("0.0/group/", store)).beat()
        return dead.number
    *_, dead = together(*(lambda one=one: one.start([np.zeros(4, np.uint8)], lambda: 0)
                          for one in both), die)
    assert [one.members for one in both] == [tuple({0, 1, 2} - {dead})] * 2
    for rank in range(3):
        store.set(f"0.0/group/place/{rank}", b"null")  # so that no thread waits for it
    together(*(one.close for one in both))


# ---- The newest state

# ---- What cannot be

def test_an_impossible_request_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.delenv("HARP_STORE", raising=False)
    with pytest.raises(ValueError, match="need a store that stays up longer than they do"):
        Peers(2)
    with pytest.raises(ValueError, match="count is 0; allowed is 1 or more"):
        Peers(0, store=MemoryStore())
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    peers = Peers(1, store=MemoryStore())
    with pytest.raises(ValueError, match="give islands= or peers="):
        DiLoCo(model, inner, 2, Islands(), peers=peers)
    with pytest.raises(ValueError, match="give delay=0"):
        StreamingDiLoCo(model, inner, 4, peers=peers)
    with pytest.raises(ValueError, match="have no ring; give exchange='direct'"):
        DiLoCo(model, inner, 2, bits=8, exchange="ring", peers=peers)
