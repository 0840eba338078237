"""Operators as torch runs them: each finds its parameters, and what it writes stays."""

from __future__ import annotations

import pytest
import torch

from harp.angelptm.page_plan import DEVICE
from tests.harp.angelptm.models import WIDTH, batches, config, engine_of, seeded


@pytest.fixture
def engine():
    """An engine whose device holds a small part of the model."""
    with engine_of(seeded(), config(14, 160)) as made, torch.no_grad():
        yield made


def send_words_away(engine):
    """Run layers that need the room of the words' pages."""
    for layer in engine.module.layers:
        layer(torch.ones(2, WIDTH))
    names = [name for name, _ in engine.module.named_parameters()]
    words = engine.layout.pages_of(names.index("words.weight"))
    assert any(engine.cache.where[page][0] != DEVICE for page in words)


def test_a_function_finds_parameters_that_have_gone(engine):
    tokens, plain = batches(1)[0], seeded().words.weight
    with engine.watched():
        for _ in range(2):
            weight = engine.module.words.weight
            assert torch.equal(torch.nn.functional.embedding(tokens, weight), plain[tokens])
            assert torch.equal(torch.ones(3, WIDTH) @ weight.T, torch.ones(3, WIDTH) @ plain.T)
            send_words_away(engine)


@pytest.mark.parametrize("write", [
    lambda p: p.mul_(2), lambda p: torch.mul(p, 2, out=p), lambda p: p[:].view(-1).mul_(2),
    lambda p: torch._foreach_mul_([p], 2)], ids=["in place", "out", "a view", "foreach"])
def test_a_write_stays_when_its_pages_go_and_come(engine, write):
    plain = 2 * seeded().words.weight
    with engine.watched():
        write(engine.module.words.weight)
        send_words_away(engine)
        assert torch.equal(engine.module.words.weight.clone(), plain)


def test_an_engine_watches_until_the_outermost_of_its_watches_ends(engine):
    assert not engine.is_watching
    with engine.watched():
        with engine.watched():
            assert engine.is_watching
        assert engine.is_watching
    with pytest.raises(ZeroDivisionError), engine.watched():
        _ = 1 / 0
    assert not engine.is_watching
