"""DDP's hook that averages gradients in few bits; every rank is a thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from harp.lightcc.torch.few_bits import BitsState, average_in_few_bits  # noqa: E402
from tests.harp.lightcc.torch.test_gradient_hook import Bucket, Ranks, random  # noqa: E402


def averages(ranks, states, gradients):
    """Average one bucket; gives the average, which all ranks have."""
    with ThreadPoolExecutor(len(states)) as pool:
        found = list(pool.map(lambda state, own: average_in_few_bits(state, Bucket(own)).wait(),
                              states, [own.clone() for own in gradients]))
    assert len({one.numpy().tobytes() for one in found}) == 1
    return found[0]


@pytest.mark.parametrize("bits", [8, 2])
def test_the_first_step_is_dense_and_what_later_ones_lose_comes_with_the_next(bits):
    with Ranks(2) as ranks:
        states = [BitsState(bits, group) for group in ranks.groups]
        first = random(2, 0)
        torch.testing.assert_close(averages(ranks, states, first), sum(first) / 2)
        given = came = 0
        distances = []
        for seed in range(1, 30):
            gradients = random(2, seed)
            given = given + sum(gradients) / 2
            came = came + averages(ranks, states, gradients)
            distances.append(float((came - given).norm()))
        assert distances[0] > 0
        assert max(distances[10:]) < 3 * max(distances[:10])  # errors do not add up


def test_gradients_that_are_not_float32_are_averaged_densely():
    with Ranks(2) as ranks:
        states = [BitsState(2, group) for group in ranks.groups]
        for seed in range(3):
            gradients = [own.double() for own in random(2, seed)]
            torch.testing.assert_close(averages(ranks, states, gradients), sum(gradients) / 2)


def test_bits_and_groups_that_cannot_be_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="bits is 3; allowed are "):
        BitsState(3)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="BitsState needs a group of the backend lightcc"):
            BitsState(8)
    finally:
        dist.destroy_process_group()
    monkeypatch.setenv("LIGHT_2D_ALLREDUCE", "1")
    monkeypatch.setenv("LIGHT_INTRA_SIZE", "2")
    with Ranks(3) as ranks, pytest.raises(
            ValueError, match="LIGHT_INTRA_SIZE is 2; few bits with LIGHT_2D_ALLREDUCE need a di"):
        BitsState(8, ranks.groups[0])
