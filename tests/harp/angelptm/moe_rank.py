"""One rank of test_moe.py, under torchrun's variables: a layer, beside one of all experts."""

import json
import os
import random

import torch
import torch.distributed as dist
from torch import nn

import harp.lightcc.torch  # noqa: F401  (registers the backend)
from harp.angelptm.moe import MoE
from harp.angelptm.tokens import Places

WIDTH = 24


def make_expert(number):
    generator = torch.Generator().manual_seed(number)
    expert = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH))
    with torch.no_grad():
        for parameter in expert.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return expert


def drawn(case, rank, tokens, *, to_one, dtype):
    generator = torch.Generator().manual_seed(1000 * case + rank)
    x = torch.randn(tokens, WIDTH, generator=generator)
    if to_one:
        x = x.abs() + 1  # the router's first rows are larger by far
    return x.to(dtype).requires_grad_(), torch.randn(tokens, WIDTH, generator=generator)


def unsplit(router, experts, x, top_k, capacity_factor):
    """All in one place, token by token in the words of the papers."""
    shares = nn.functional.linear(x, router).float().softmax(-1)
    weights, chosen = shares.topk(top_k)
    used = torch.stack([(chosen == e).sum() for e in range(len(experts))]) / max(chosen.numel(), 1)
    balance = len(experts) * (used * shares.mean(0)).sum() if len(x) else shares.sum()
    if capacity_factor is not None:
        most = -int(-capacity_factor * chosen.numel() // len(experts))
        kept = torch.zeros_like(chosen, dtype=torch.bool)
        served = [0] * len(experts)
        for choice in range(top_k):
            for token in range(len(x)):
                expert = int(chosen[token, choice])
                kept[token, choice] = served[expert] < most
                served[expert] += 1
    else:
        kept = torch.ones_like(chosen, dtype=torch.bool)
    weights = weights / weights.sum(-1, keepdim=True)
    y = torch.zeros_like(x, dtype=torch.float32)
    for number, expert in enumerate(experts):
        token, choice = ((chosen == number) & kept).nonzero(as_tuple=True)
        if len(token):
            y = y.index_add(0, token, expert(x[token]).float() * weights[token, choice, None])
    return y.to(x.dtype), balance


def close(found, wanted):
    if found.dtype is torch.float32:
        torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)
    elif wanted.numel():  # gradients are summed in another order, and each sum is rounded
        torch.testing.assert_close(found, wanted, rtol=0, atol=0.02 * float(wanted.abs().max()))


def check_case(case, rank, ranks, dtype=torch.float32):
    draw = random.Random(case)
    experts = ranks * draw.choice([1, 2, 4])
    top_k = draw.randint(1, min(experts, 5))
    to_one, capacity = draw.random() < 0.3, draw.choice([None, None, 0.5, 1.0, 2.0])
    hosts = draw.choice([[i // max(ranks // 2, 1) for i in range(ranks)], [0] * ranks,
                         list(range(ranks)), [i % 2 for i in range(ranks)]])
    sizes = [draw.choice([0, 1, 5, 40, 97]) for _ in range(ranks)]
    layer = MoE(WIDTH, experts, top_k, make_expert, capacity_factor=capacity,
                chunks=draw.randint(1, 4),
                way=draw.choice([None, "direct", "hierarchical", "once-per-host"]))
    layer.places = Places(experts, tuple(hosts))
    router = torch.randn(experts, WIDTH, generator=torch.Generator().manual_seed(case))
    if to_one:
        router[0] += 10
    with torch.no_grad():
        layer.router.weight.copy_(router)
    layer, router = layer.to(dtype), router.to(dtype)
    x, goal = drawn(case, rank, sizes[rank], to_one=to_one, dtype=dtype)
    y = layer(x)
    ((y * goal).sum() + 0.3 * layer.balance).backward()

    whole = [make_expert(number).to(dtype) for number in range(experts)]
    router.requires_grad_()
    for other in range(ranks):
        x_of, goal_of = drawn(case, other, sizes[other], to_one=to_one, dtype=dtype)
        wanted, balance = unsplit(router, whole, x_of, top_k, capacity)
        ((wanted * goal_of).sum() + 0.3 * balance).backward()
        if other == rank:
            close(y, wanted)
            close(layer.balance, balance)
            close(x.grad, x_of.grad)
    summed = layer.router.weight.grad.clone()
    summed = summed.float()
    if ranks > 1:
        dist.all_reduce(summed)
    close(summed.to(dtype), router.grad)
    first = rank * experts // ranks
    for own, of_whole in zip(layer.experts, whole[first:], strict=False):
        for one, two in zip(own.parameters(), of_whole.parameters(), strict=True):
            close(torch.zeros_like(one) if one.grad is None else one.grad,
                  torch.zeros_like(two) if two.grad is None else two.grad)


def main():
    torch.set_num_threads(1)
    ranks = int(os.environ["WORLD_SIZE"])
    rank = int(os.environ["RANK"])
    if ranks > 1:
        dist.init_process_group("lightcc")
    for case in range(40):
        check_case(case, rank, ranks)
    for case in range(12):
        check_case(case, rank, ranks, torch.bfloat16)
    print(json.dumps("right"))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
