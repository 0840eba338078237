"""Updates of chunks by the gradients of a step: torch's optimizer is the oracle."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from harp.angelptm.cache import Cache
from harp.angelptm.late import Waiting
from harp.angelptm.page_plan import Capacities
from harp.angelptm.pages import Layout
from harp.angelptm.state_window import Window
from harp.angelptm.updates import Updates

SIZES, PAGE = (700, 3000, 5), 8192


class Trained:
    """Parameters in pages and their updates, and the same ones with torch's optimizer."""

    def __init__(self, late=0, **more):
        self.layout = Layout(SIZES, 4, PAGE)
        self.cache = Cache(self.layout, Capacities(self.layout.pages, 0))
        self.window = Window(self.cache, torch.float32)
        self.own = [self.window.make(torch.Size([size])) for size in SIZES]
        for number, one in enumerate(self.own):
            one.copy_(values(number, number))
        self.theirs = [nn.Parameter(one.clone()) for one in self.own]
        self.optimizer = torch.optim.AdamW([
            {"params": self.theirs[:1], "lr": 0.1}, {"params": self.theirs[1:], **more}], lr=0.01)
        for group in self.optimizer.param_groups:
            group["decoupled"] = True
        self.late = Waiting(self.layout, late) if late else None
        self.updates = Updates(self.cache, "float32", self.late, None)

    def begin(self, gradients):
        """Bring gradients by the numbers of parameters."""
        number_of = {id(one): number for number, one in enumerate(self.theirs)}
        self.updates.begin(self.optimizer.param_groups, number_of)
        for number, gradient in gradients.items():
            self.window.keep_gradient(number, gradient, set())
            self.updates.new.arrived.add(number)

    def by_torch(self, gradients):
        for number, one in enumerate(self.theirs):
            one.grad = gradients.get(number)
        self.optimizer.step()

    def check(self):
        for own, other in zip(self.own, self.theirs, strict=True):
            torch.testing.assert_close(own, other.detach(), rtol=0, atol=1e-6)


def values(number, seed):
    return torch.randn(SIZES[number], generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def trained(request):
    made = Trained(**getattr(request, "param", {}))
    yield made
    made.cache.close()


@pytest.mark.parametrize("trained", [{"weight_decay": 0.3, "betas": (0.5, 0.9)}], indirect=True)
def test_a_parameter_is_updated_by_its_group_and_as_often_as_it_has_gradients(trained):
    """One without a gradient in the second step has a bias correction of its own from then on."""
    for step, numbers in enumerate([(0, 1, 2), (0, 2), (0, 1, 2)]):
        gradients = {number: values(number, 10 * step + number) for number in numbers}
        trained.begin(gradients)
        chunks = trained.updates.chunks()
        assert chunks == sorted({chunk for number in numbers
                                 for chunk in trained.layout.chunks_of(number)})
        for chunk in chunks:
            trained.updates.update(chunk)
        trained.updates.count()
        trained.updates.end()
        trained.by_torch(gradients)
        trained.check()


def test_a_chunk_that_is_asked_for_twice_is_updated_once(trained):
    gradients = {number: values(number, number) for number in range(3)}
    trained.begin(gradients)
    for chunk in 2 * trained.updates.chunks():
        trained.updates.update(chunk)
    trained.by_torch(gradients)
    trained.check()


def test_a_gradient_that_comes_after_its_chunks_update_is_missed_by_name(trained):
    shared = trained.layout.chunks_of(0) & trained.layout.chunks_of(1)
    assert shared
    trained.begin({0: values(0, 0)})
    for chunk in trained.updates.chunks():
        trained.updates.update(chunk)
    trained.updates.new.arrived.add(1)
    chunks = range(trained.layout.chunks)
    assert set(trained.updates.missed(chunks)) == trained.layout.chunks_of(1)


def test_a_step_that_is_skipped_changes_nothing(trained):
    before = [one.clone() for one in trained.own]
    trained.begin({number: values(number, number) for number in range(3)})
    trained.updates.new.skip = True
    for chunk in trained.updates.chunks():
        trained.updates.update(chunk)
    assert all(map(torch.equal, trained.own, before))


@pytest.mark.parametrize("trained", [{"late": 2}], indirect=True)
def test_a_sum_that_waited_is_a_step_for_each_gradient_by_their_mean(trained):
    first, second = ({number: values(number, 10 * step + number) for number in range(3)}
                     for step in (1, 2))
    for step, gradients in enumerate((first, second)):
        trained.begin(gradients)
        trained.late.add(gradients, step)
        trained.updates.count()
        trained.updates.keep()
        trained.updates.end()
    for number in range(3):
        trained.window.keep_gradient(number, first[number] + second[number], set())
    for chunk in trained.late.chunks():
        trained.updates.update(chunk)
    assert trained.late.chunks() == []
    for _ in range(2):
        trained.by_torch({number: (first[number] + second[number]) / 2 for number in range(3)})
    trained.check()
