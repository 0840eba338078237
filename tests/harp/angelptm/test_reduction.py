"""Gradients of several ranks: the pages that are complete, and the means of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from harp.angelptm.cache import Cache, Demand
from harp.angelptm.page_plan import HOST, Capacities, Sharing
from harp.angelptm.pages import Layout
from harp.angelptm.reduction import Reduction
from harp.angelptm.state_window import tensor_at
from tests.support import PATIENCE_S

RANKS, SIZES, PAGE = 2, (1500, 300, 4000), 8192
"""The first two parameters share a page, and the third has three pages in float32."""


class Calls:
    """The calls of ranks that are threads of this process."""

    def __init__(self):
        self.barrier, self.given = threading.Barrier(RANKS, timeout=PATIENCE_S), [None] * RANKS

    def _all(self, rank, given):
        self.given[rank] = given.clone()
        self.barrier.wait()
        found = list(self.given)
        self.barrier.wait()
        return found

    def of(self, rank):
        calls = self

        class Ranks:
            def gather(self, whole, own):
                whole.copy_(torch.cat(calls._all(rank, own)))

            def exchange(self, received, given):
                received.copy_(torch.cat([one.view(RANKS, -1)[rank]
                                          for one in calls._all(rank, given)]))
        return Ranks()


class Rank:
    """One rank's pages, and what it has of each parameter's gradient."""

    def __init__(self, calls, rank, dtype, **how):
        self.dtype, self.rank = dtype, rank
        self.layout = layout = Layout(SIZES, dtype.itemsize, PAGE, RANKS, rank)
        later = 2 * layout.shown
        self.cache = Cache(layout, Capacities(layout.pages, layout.pages + later + 2),
                           sharing=Sharing(layout.shown, RANKS, drops=True), later=later)
        self.demand = Demand(self.cache)
        self.reduction = Reduction(self.cache, calls.of(rank), dtype,
                                   **{"each": True, "norms": True, **how})

    def write(self, number, gradient):
        """Put a gradient into its pages."""
        for page, at, begin, end in self.layout.parts_of(number, gradient=True):
            self.demand.have([page], HOST)
            place = tensor_at(self.cache.address(page) + at, (end - begin) // self.dtype.itemsize,
                              self.dtype)
            place.copy_(gradient[begin // self.dtype.itemsize:end // self.dtype.itemsize])
        self.reduction.wrote(number)

    def reduce(self, pages):
        for page in pages:
            own = self.layout.source_of(page)[0] + self.layout.kept
            self.demand.have([self.layout.shown + page, own], HOST)
            self.reduction.reduce(page)
            self.demand.drop([self.layout.shown + page])

    def own(self, number, kind):
        """Give this rank's part of a parameter (kind 0) or gradient (1): places and values."""
        for begin, end, chunk, first in self.layout.ranges(number):
            page = self.layout.page_of_chunk(chunk) + kind * self.layout.kept
            at = begin * self.dtype.itemsize % PAGE
            self.demand.have([page], HOST)
            yield slice(first, first + end - begin), tensor_at(
                self.cache.address(page) + at, end - begin, self.dtype)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def ranks(request):
    calls = Calls()
    made = [Rank(calls, rank, request.param) for rank in range(RANKS)]
    yield made
    for one in made:
        one.cache.close()


def both(ranks, does):
    """Have all ranks do something at once."""
    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(does, ranks))


def gradients(rank, seed):
    generator = torch.Generator().manual_seed(10 * seed + rank.rank)
    return [torch.randn(size, generator=generator).to(rank.dtype) for size in SIZES]


def test_each_rank_keeps_the_mean_of_its_own_part_and_its_norm(ranks):
    """Of two micro-batches, whose means are added up."""
    def train(rank):
        for batch in range(2):
            rank.reduction.begin(last=batch == 1)
            for number, gradient in enumerate(gradients(rank, batch)):
                rank.write(number, gradient)
            rank.reduce(rank.reduction.due(over=True))
        assert rank.reduction.due(over=True) == []
    both(ranks, train)
    means = [[sum(gradients(rank, batch)[number].float() for rank in ranks) / RANKS
              for batch in range(2)] for number in range(len(SIZES))]
    square = 0.0
    for rank in ranks:
        for number in range(len(SIZES)):
            for place, found in rank.own(number, 1):
                first, second = (mean[place] for mean in means[number])
                kept = first.to(rank.dtype).float()  # the first is in the pages when it is added to
                assert torch.equal(found, (kept + second).to(rank.dtype))
                square += float(found.double().square().sum())
    assert sum(rank.reduction.end() for rank in ranks) == pytest.approx(square)
    assert [rank.reduction.end() for rank in ranks] == [0.0] * RANKS


def test_a_page_is_due_when_the_last_of_its_gradients_is_there(ranks):
    reduction, layout = ranks[0].reduction, ranks[0].layout
    shared, = set(layout.pages_of(0)) & set(layout.pages_of(1))
    reduction.begin(last=True)
    reduction.wrote(0)
    assert reduction.due() == [page for page in layout.pages_of(0) if page != shared]
    reduction.wrote(1)
    assert reduction.due([shared]) == ([] if shared in layout.pages_of(2) else [shared])
    reduction.wrote(2)
    assert reduction.due() == list(range(layout.shown))


def test_a_page_that_lacks_a_gradient_is_due_when_its_micro_batch_is_over(ranks):
    reduction, layout = ranks[0].reduction, ranks[0].layout
    reduction.begin(last=True)
    reduction.wrote(1)
    assert reduction.due() == []
    assert reduction.due(over=True) == list(layout.pages_of(1))
    reduction.forget()
    assert reduction.due(over=True) == []


def test_gradients_that_are_reduced_once_a_step_wait_for_its_last_micro_batch():
    rank = Rank(Calls(), 0, torch.float32, each=False)
    reduction = rank.reduction
    for last in (False, True):
        reduction.begin(last=last)
        for number in range(len(SIZES)):
            reduction.wrote(number)
        assert bool(reduction.due(over=True)) == last
    rank.cache.close()


def test_a_gathered_page_has_the_parts_of_all_ranks(ranks):
    def gather(rank):
        for number, size in enumerate(SIZES):
            values = torch.arange(size).to(rank.dtype)
            for place, own in rank.own(number, 0):
                own.copy_(values[place])
        for number, size in enumerate(SIZES):
            for page, at, begin, end in rank.layout.parts_of(number):
                rank.demand.have([page], HOST)
                found = tensor_at(rank.cache.address(page) + at,
                                  (end - begin) // rank.dtype.itemsize, rank.dtype)
                whole = torch.arange(size).to(rank.dtype)
                assert torch.equal(found, whole[begin // rank.dtype.itemsize:][:len(found)])
    both(ranks, gather)
