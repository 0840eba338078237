"""A step of Adam in C: torch's optimizers are the oracle, and every form gives the same bits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from harp.angelptm.adam import Adam, update
from tests.harp.lightcc.every_kernel import kernel_names, kernels

ODD = 1000 + 17
"""Elements: whole blocks and a rest."""


def step(adam, number, tensors, element="float32", elements=slice(0, ODD), scale=1.0):
    """Step over some elements of masters, moments, gradients and parameters, if any."""
    addresses = [0 if tensor is None else tensor[elements].data_ptr() for tensor in tensors]
    update(addresses, len(range(*elements.indices(ODD))), element, adam.at(number, scale))


def drawn(seed, dtype=torch.float32):
    """Gradients of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-8, 3, (ODD,), generator=generator)
    return (torch.randn(ODD, generator=generator) * 10.0 ** exponents).to(dtype)


@pytest.mark.parametrize("form", kernel_names())
@pytest.mark.parametrize(("adam", "oracle"), [
    (Adam(), lambda own: torch.optim.AdamW([own])),
    (Adam(2e-2, (0.8, 0.95), 1e-6, 0.1), lambda own: torch.optim.AdamW(
        [own], lr=2e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
    (Adam(decay=0.0, decoupled=False), lambda own: torch.optim.Adam([own])),
    (Adam(decay=0.1, decoupled=False), lambda own: torch.optim.Adam([own], weight_decay=0.1))],
    ids=["AdamW", "AdamW with all set", "Adam", "Adam with decay"])
def test_fifty_steps_are_those_of_torch(form, adam, oracle):
    masters = drawn(0).clamp(-1, 1)
    moments = torch.zeros(2, ODD)
    own = torch.nn.Parameter(masters.clone())
    optimizer = oracle(own)
    with kernels(form):
        for number in range(1, 51):
            own.grad = drawn(number)
            step(adam, number, (masters, *moments, own.grad, None))
            optimizer.step()
    assert (masters - own.detach()).abs().max() <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_form_and_every_cut_gives_the_same_bits(dtype):
    name, found = str(dtype).removeprefix("torch."), []
    cuts = [[0, ODD], [0, 64, 500, 501, ODD]]
    for form, cut in [(form, cut) for form in kernel_names() for cut in cuts]:
        masters, moments = drawn(0).clamp(-1, 1), torch.zeros(2, ODD)
        parameters = torch.zeros(ODD, dtype=dtype)
        with kernels(form):
            for number in range(1, 5):
                gradients = drawn(number, dtype)
                for begin, end in itertools.pairwise(cut):
                    step(Adam(), number, (masters, *moments, gradients, parameters), name,
                         slice(begin, end), scale=0.3)
        assert torch.equal(parameters, masters.to(dtype))
        found.append(np.concatenate([masters.numpy(), *moments.numpy()]).tobytes())
    assert len(set(found)) == 1


def test_gradients_are_scaled():
    states = [[torch.ones(ODD), torch.zeros(ODD), torch.zeros(ODD)] for _ in range(2)]
    gradients = drawn(1)
    step(Adam(), 1, (*states[0], gradients, None), scale=0.25)
    step(Adam(), 1, (*states[1], gradients / 4, None))
    assert all(torch.equal(*pair) for pair in zip(*states, strict=True))
