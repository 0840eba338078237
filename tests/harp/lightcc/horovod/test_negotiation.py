"""Decisions of rank 0, for any order of requests; no process, thread or clock."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.lightcc.horovod import negotiation
from harp.lightcc.horovod.negotiation import WAIT, Codec, Coordinator, Request, Response

MIB = 1 << 20


def gradient(name, nbytes=4, **more):
    return Request("allreduce", name, "float32", (nbytes // 4,), nbytes, "avg", **more)


def names(responses):
    return [[request.name for request in response.requests] for response in responses]


@settings(deadline=None)
@given(st.lists(st.integers(0, 4 * MIB), min_size=1, max_size=30), st.integers(1, 4),
       st.integers(0, 8 * MIB), st.randoms(use_true_random=False))
def test_each_tensor_is_reduced_once_in_any_order_of_ranks(sizes, ranks, threshold, chance):
    coordinator = Coordinator(ranks, threshold)
    events = [(rank, gradient(f"g{at}", 4 * size)) for rank in range(ranks)
              for at, size in enumerate(sizes)]
    chance.shuffle(events)
    heard, responses = {}, []
    for rank, request in events:
        coordinator.hear(rank, [request], 0.0)
        heard.setdefault(request.name, set()).add(rank)
        if chance.random() < 0.2:
            for response in coordinator.decide():
                assert all(len(heard[one.name]) == ranks for one in response.requests)
                responses.append(response)
    responses += coordinator.decide()
    assert sorted(name for bucket in names(responses) for name in bucket) == sorted(
        f"g{at}" for at in range(len(sizes)))
    for response in responses:
        assert not response.error
        assert (len(response.requests) == 1
                or sum(request.nbytes for request in response.requests) <= threshold)


def test_once_all_ranks_wait_the_coordinator_expects_no_tensor_until_one_asks():
    coordinator = Coordinator(3, MIB)
    for rank in range(3):
        assert coordinator.expects_more
        coordinator.hear(rank, [gradient("a"), WAIT], 0.0)
    assert not coordinator.expects_more
    coordinator.hear(1, [gradient("b")], 0.0)
    assert coordinator.expects_more
    coordinator.hear(1, [Request("join", "join")], 0.0)
    assert not coordinator.expects_more
    coordinator.hear(0, [gradient("b")], 0.0)
    coordinator.leave(0, "gone")
    assert not coordinator.expects_more
    assert names(coordinator.decide())[0] == ["a"]


def test_types_and_reductions_do_not_mix_in_a_bucket():
    coordinator = Coordinator(1, MIB)
    coordinator.hear(0, [gradient("a"), replace(gradient("b"), dtype="float16"), gradient("c"),
                         replace(gradient("d"), detail="sum")], 0.0)
    assert names(coordinator.decide()) == [["a", "c"], ["b"], ["d"]]


def test_a_group_travels_whole_and_together_even_above_the_threshold():
    coordinator = Coordinator(2, 0)
    group = [gradient(f"g{i}", MIB, group="all", group_size=3) for i in range(3)]
    coordinator.hear(0, group, 0.0)
    coordinator.hear(1, group[:2], 0.0)
    assert not coordinator.has_responses
    coordinator.hear(1, group[2:], 0.0)
    assert names(coordinator.decide()) == [["g0", "g1", "g2"]]


def gathering(name, size, rows=2):
    return Request("allgather", name, "float32", (2, rows), 8 * rows, group="all", group_size=size)


def test_gathers_of_a_group_travel_together_up_to_the_threshold_and_types_do_not_mix():
    coordinator = Coordinator(2, 100)
    for rank in range(2):
        coordinator.hear(rank, [
            Request("allgather", name, dtype, (rows, 2), 8 * rows, group="all", group_size=4)
            for name, dtype, rows in (("a", "float32", 1 + rank), ("b", "int32", 1),
                                      ("c", "float32", 4), ("d", "float32", 2 * rank))], 0.0)
    responses = coordinator.decide()
    # The result of a has 24 B, that of c 64, that of d 16.
    assert [(names([response])[0], response.rows) for response in responses] == [
        (["a", "c"], ((1, 4), (2, 4))), (["d"], ((0,), (2,))), (["b"], ((1,), (1,)))]


def test_one_tensor_that_does_not_go_together_fails_its_whole_group():
    coordinator = Coordinator(2, 0)
    coordinator.hear(0, [gathering("a", 2), gathering("b", 2)], 0.0)
    coordinator.hear(1, [gathering("a", 2), gathering("b", 2, rows=3)], 0.0)
    (response,) = coordinator.decide()
    assert [request.name for request in response.requests] == ["a", "b"]
    assert response.error.startswith(
        "ranks do not agree on b: rank 0 calls allgather of 2x2 float32")


@given(st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_no_tensor_waits_for_a_group_that_ranks_do_not_count_alike(one, other, turned):
    coordinator = Coordinator(2, 0)
    for rank, size in enumerate((one, other)):
        group = [gathering(f"g{at}", size) for at in range(size)]
        coordinator.hear(rank, group[::-1] if turned else group, 0.0)
    responses = coordinator.decide()
    assert sorted(name for bucket in names(responses) for name in bucket) == sorted(
        f"g{at}" for at in range(max(one, other)))
    assert all(bool(response.error) == (one != other) for response in responses)
    assert coordinator.oldest_s() is None
    assert not coordinator._parts


@pytest.mark.parametrize(("reduction", "refused"), [
    ("sum", False), ("avg", False), ("min", True), ("max", True), ("product", True)])
def test_a_rank_that_joined_brings_zeros_to_sums_alone(reduction, refused):
    coordinator = Coordinator(2, MIB)
    coordinator.hear(1, [Request("join", "join")], 0.0)
    coordinator.hear(0, [Request("allreduce", "a", "float32", (1,), 4, reduction)], 0.0)
    (answer,) = coordinator.decide()
    assert bool(answer.error) == refused
    if refused:
        assert answer.error == (f"a: allreduce by {reduction} is not possible while rank 1 joined; "
                                "allreduce by sum or average and barrier are")


def test_a_rank_that_joined_is_not_waited_for_until_all_have():
    coordinator = Coordinator(3, MIB)
    coordinator.hear(2, [Request("join", "join")], 0.0)
    for rank in (0, 1):
        coordinator.hear(rank, [gradient("a")], 0.0)
    assert names(coordinator.decide()) == [["a"]]
    gather = Request("allgather", "b", "float32", (2,), 8)
    for rank in (1, 0):
        coordinator.hear(rank, [gather], 0.0)
    (refused,) = coordinator.decide()
    assert "not possible while rank 2 joined" in refused.error
    coordinator.hear(0, [Request("join", "join")], 0.0)
    coordinator.hear(1, [gradient("c")], 0.0)
    assert names(coordinator.decide()) == [["c"]]
    coordinator.hear(1, [Request("join", "join")], 0.0)
    (over,) = coordinator.decide()
    assert over.requests[0].kind == "join"
    assert over.last == 1
    assert not coordinator.has_responses


def test_a_tensor_that_waits_is_named_once_with_the_ranks_that_miss():
    coordinator = Coordinator(4, MIB)
    coordinator.hear(1, [gradient("conv1")], 10.0)
    coordinator.hear(3, [gradient("conv1")], 11.0)
    assert coordinator.stalled(9.0) == []
    assert coordinator.stalled(10.0) == ["conv1 waits for ranks 0, 2; ranks 1, 3 asked for it"]
    assert coordinator.stalled(99.0) == []
    assert coordinator.oldest_s() == 10.0
    assert coordinator.oldest_s(warned=False) is None


def test_what_waits_for_a_rank_that_left_fails_now_and_later():
    coordinator = Coordinator(2, MIB)
    coordinator.hear(0, [gradient("a")], 0.0)
    coordinator.leave(1, "rank 1 is gone: closed")
    coordinator.hear(0, [gradient("b")], 0.0)
    responses = coordinator.decide()
    assert [response.error for response in responses] == ["a: rank 1 is gone: closed",
                                                    "b: rank 1 is gone: closed"]
    assert all(response.gone for response in responses)


def test_messages_are_read_as_they_were_written_and_what_was_said_before_is_short():
    requests = [gradient("a", 8, sparse=True), Request("alltoall", "b", "int64", (3, 2), 48,
                                                      splits=(1, 2))]
    responses = [Response(tuple(requests), ((1, 2), (0, 3))), Response((), tuned={"cycle_s": 0.5}),
               Response((requests[0],), error="why", gone=True, last=3)]
    ends, sizes = (Codec(), Codec()), []
    for _ in range(2):
        message = ends[0].pack_requests(requests)
        assert ends[1].unpack_requests(message) == requests
        sizes.append(len(message))
        assert ends[1].unpack_responses(ends[0].pack_responses(responses)) == responses
    assert sizes[1] == len("[0, 1]")


def test_more_names_than_are_remembered_are_still_read(monkeypatch):
    monkeypatch.setattr(negotiation, "KNOWN", 3)
    ends = Codec(), Codec()
    requests = [gradient(f"g{i}") for i in range(6)]
    for _ in range(2):
        assert ends[1].unpack_requests(ends[0].pack_requests(requests)) == requests


def test_one_rank_alone_decides_at_once():
    coordinator = Coordinator(1, MIB)
    tensors = [gradient(f"g{i}") for i in range(5)]
    random.Random(1).shuffle(tensors)
    coordinator.hear(0, tensors, 0.0)
    assert names(coordinator.decide()) == [[tensor.name for tensor in tensors]]
