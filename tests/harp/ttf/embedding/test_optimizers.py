"""Optimizers of dynamic tables: the formulas of their papers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harp.ttf.embedding import FTRL, SGD, Adagrad, Adam, DynamicEmbedding, TableOptimizer
from harp.ttf.embedding.table import HEAD, Table


def trained(optimizer, gradients, first=None):
    """The row of one id after these gradients."""
    module = DynamicEmbedding(gradients.shape[1], optimizer=optimizer, bound=0.0, shards=1)
    if first is not None:
        head = np.zeros(1, dtype=HEAD)
        values = np.zeros((1, module.table.floats), dtype=np.float32)
        values[0, :len(first)] = first
        module.table.write(head, values)
    step = TableOptimizer(module)
    for gradient in gradients:
        (module(torch.tensor(0)) * torch.tensor(gradient)).sum().backward()
        step.step()
        step.zero_grad()
    return module(torch.tensor(0)).detach().numpy()


@pytest.mark.parametrize("first", [None, np.array([0.5, -0.25, 0.0, 0.125])])
def test_ftrl_follows_algorithm_1(first):
    how = FTRL(lr=0.3, beta=0.7, l1=0.05, l2=0.1)
    gradients = np.random.default_rng(1).normal(size=(12, 4)).astype(np.float32)
    w = np.zeros(4) if first is None else first.copy()
    n, z = np.zeros(4), -w * (how.beta / how.lr + how.l2) - np.sign(w) * how.l1
    for g in gradients.astype(np.float64):
        sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / how.lr
        z, n = z + g - sigma * w, n + g * g
        w = np.where(np.abs(z) <= how.l1, 0,
                     -(z - np.sign(z) * how.l1) / ((how.beta + np.sqrt(n)) / how.lr + how.l2))
    np.testing.assert_allclose(trained(how, gradients, first), w, atol=1e-6)


def test_rowwise_adagrad_keeps_the_mean_square_of_a_row():
    how = Adagrad(lr=0.1, eps=1e-8, rowwise=True)
    gradients = np.random.default_rng(2).normal(size=(12, 4)).astype(np.float32)
    w, total = np.zeros(4), 0.0
    for g in gradients.astype(np.float64):
        total += (g * g).mean()
        w -= how.lr * g / (np.sqrt(total) + how.eps)
    np.testing.assert_allclose(trained(how, gradients), w, atol=1e-6)


@pytest.mark.parametrize(("how", "floats"), [
    (SGD(), 0), (Adagrad(), 5), (Adagrad(rowwise=True), 1), (Adam(), 10), (FTRL(), 10)])
def test_a_row_has_the_state_that_its_optimizer_needs(how, floats):
    assert how.floats(5) == floats
    assert Table(5, how).floats == 5 + floats


def test_sums_of_adagrad_begin_where_they_are_asked_to():
    assert Adagrad(initial=0.25).initial == 0.25
    assert SGD().initial == Adam().initial == 0.0


@given(st.integers(1, 1000), st.floats(0, 0.99), st.floats(0, 0.999))
def test_adams_rate_has_both_corrections_of_its_paper(step, beta1, beta2):
    fields = Adam(lr=0.5, betas=(beta1, beta2)).step(step)
    assert fields["rate"] == pytest.approx(
        0.5 * (1 - beta2 ** step) ** 0.5 / (1 - beta1 ** step), rel=1e-9, abs=1e-12)
    assert fields["beta1_rest"] == 1 - beta1


@pytest.mark.parametrize(("make", "sentence"), [
    (lambda: SGD(lr=-1), "SGD: lr=-1: a number of at least 0"),
    (lambda: SGD(lr=float("nan")), "SGD: lr=nan: a number of at least 0"),
    (lambda: Adagrad(initial="much"), "Adagrad: initial='much': a number of at least 0"),
    (lambda: FTRL(lr=0), "FTRL: lr=0: a number of at least 2.2"),
    (lambda: Adam(betas=(0.9, 1.0)), r"Adam: betas=\(0.9, 1.0\): two numbers from 0 to below 1"),
    (lambda: Adam(betas=0.9), "Adam: betas=0.9: two numbers from 0 to below 1")])
def test_a_setting_that_cannot_be_is_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        make()
