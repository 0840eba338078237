"""Parameters and gradients at addresses for good: the pages behind them are what they show."""

from __future__ import annotations

import pytest
import torch

from harp.angelptm.cache import Cache, Demand
from harp.angelptm.page_plan import DEVICE, HOST, Capacities
from harp.angelptm.pages import Layout
from harp.angelptm.state_window import Window, tensor_at

SHAPES = [torch.Size(each) for each in ((70, 50), (), (0, 3), (1000,))]
"""The first two share a page, and the first has two."""


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def window(request):
    """A window of four parameters, all on the device; the host has room for their pages."""
    layout = Layout(tuple(map(torch.Size.numel, SHAPES)), request.param.itemsize, 8192)
    cache = Cache(layout, Capacities(layout.pages, layout.pages))
    made = Window(cache, request.param)
    made.cache, made.parameters = cache, [made.make(shape) for shape in SHAPES]
    yield made
    cache.close()


def drawn(like, seed):
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).to(like.dtype)


def test_a_parameter_keeps_its_values_and_address_while_its_pages_go_and_come(window):
    for number, one in enumerate(window.parameters):
        one.copy_(drawn(one, number))
    places = [one.data_ptr() for one in window.parameters]
    shown = list(range(window.cache.layout.shown))
    for tier in (HOST, DEVICE):
        demand = Demand(window.cache)
        for page in shown:
            demand.move(page, tier, [set(shown)])
    assert all(window.cache.where[page][0] == DEVICE for page in shown)
    for number, one in enumerate(window.parameters):
        assert torch.equal(one, drawn(one, number))
    assert [one.data_ptr() for one in window.parameters] == places


def test_views_have_the_key_of_their_parameter_and_others_another(window):
    first, scalar, _, last = window.parameters
    assert window.key(first[3:].T) == window.key(first)
    assert len({window.key(one) for one in (first, scalar, last)}) == 3


def test_a_gradient_is_written_or_added_page_by_page(window):
    layout = window.cache.layout
    pages = list(layout.pages_of(0, gradient=True))
    assert len(pages) == (2 if layout.element_bytes == 4 else 1)
    old, new = (drawn(window.parameters[0], seed) for seed in (7, 8))
    for sums in (set(), set(layout.pages_of(0)), set(list(layout.pages_of(0))[:1])):
        window.keep_gradient(0, old, set())
        window.keep_gradient(0, new, sums)
        expected = new.clone().view(-1)
        for page, _, begin, end in layout.parts_of(0):
            part = slice(begin // old.element_size(), end // old.element_size())
            if page in sums:
                expected[part] += old.view(-1)[part]
        norm = torch.linalg.vector_norm(expected.float())
        assert float(window.norm(0)) == pytest.approx(float(norm), rel=1e-3)
        place = window.cache.window + layout.offset(0, gradient=True)
        assert torch.equal(tensor_at(place, len(expected), expected.dtype), expected)


def test_gradients_leave_parameters_alone(window):
    for number, one in enumerate(window.parameters):
        one.fill_(number)
        window.keep_gradient(number, drawn(one, number), set())
    assert all((one == number).all() for number, one in enumerate(window.parameters))
