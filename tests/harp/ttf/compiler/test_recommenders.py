"""Whole recommenders, compiled: results, gradients and tables of eager, in fewer calls."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import harp.ttf
from harp.ttf.embedding import SGD, DynamicEmbeddingBag, TableOptimizer
from tests.harp.ttf.compiler.test_passes import Calls
from tests.support.levels import long_except

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")

FEATURES, DIM, BATCH, DENSE = 6, 8, 16, 5


def mlp(*widths):
    layers = []
    for width, wider in pairwise(widths):
        layers += [nn.Linear(width, wider), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Recommender(nn.Module):
    """A table for each feature; ids are [batch, 2]."""

    def __init__(self, **more):
        super().__init__()
        self.tables = nn.ModuleList(DynamicEmbeddingBag(
            DIM, mode="sum", optimizer=SGD(lr=0.1), bound=0.5, seed=n) for n in range(FEATURES))
        self.make(**more)

    def rows(self, ids):
        return [table(part) for table, part in zip(self.tables, ids.unbind(), strict=True)]


class WideDeep(Recommender):
    def make(self):
        self.wide = nn.ModuleList(DynamicEmbeddingBag(1, mode="sum", optimizer=SGD(lr=0.1))
                                  for _ in range(FEATURES))
        self.deep = mlp(FEATURES * DIM + DENSE, 32, 1)

    def forward(self, ids, dense):
        wide = sum(table(part) for table, part in zip(self.wide, ids.unbind(), strict=True))
        return self.deep(torch.cat([*self.rows(ids), dense], 1)) + wide


class DeepFM(Recommender):
    def make(self):
        self.deep = mlp(FEATURES * DIM + DENSE, 32, 1)

    def forward(self, ids, dense):
        rows = torch.stack(self.rows(ids), 1)
        pairs = (rows.sum(1).square() - rows.square().sum(1)).sum(1, keepdim=True) / 2
        return self.deep(torch.cat([rows.flatten(1), dense], 1)) + pairs


class DLRM(Recommender):
    def make(self):
        self.bottom = mlp(DENSE, 16, DIM)
        places = torch.tril_indices(FEATURES + 1, FEATURES + 1, -1)
        self.register_buffer("first", places[0])
        self.register_buffer("second", places[1])
        self.top = mlp(DIM + len(places[0]), 16, 1)

    def forward(self, ids, dense):
        bottom = self.bottom(dense)
        rows = torch.stack([bottom, *self.rows(ids)], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))[:, self.first, self.second]
        return self.top(torch.cat([bottom, products], 1))


class MMoE(Recommender):
    def make(self):
        width = FEATURES * DIM + DENSE
        self.experts = nn.ModuleList(mlp(width, 64, 16) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(width, 3) for _ in range(2))
        self.towers = nn.ModuleList(mlp(16, 8, 1) for _ in range(2))

    def forward(self, ids, dense):
        x = torch.cat([*self.rows(ids), dense], 1)
        experts = torch.stack([expert(x) for expert in self.experts], 1)
        return torch.cat([tower((gate(x).softmax(1).unsqueeze(2) * experts).sum(1))
                          for gate, tower in zip(self.gates, self.towers, strict=True)], 1)


def trained(model, call):
    """Train a little, and give the losses and the rows of all ids."""
    ids, dense = torch.arange(FEATURES * BATCH * 2).reshape(FEATURES, BATCH, 2) % 23, torch.ones(
        BATCH, DENSE) * torch.linspace(-1, 1, BATCH)[:, None]
    optimizers = [TableOptimizer(model), torch.optim.SGD(
        [part for name, part in model.named_parameters() if not name.endswith("anchor")], lr=0.01)]
    losses = []
    for _ in range(4):
        loss = call(ids, dense).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses), torch.cat([table(torch.arange(23)[:, None]).detach()
                                           for table in model.tables])


@pytest.mark.parametrize(("kind", "look_ups", "linears"),
                         long_except([(WideDeep, 1, 2), (DeepFM, 1, 2), (DLRM, 1, 4),
                                      (MMoE, 1, 11)], (WideDeep, 1, 2)))
def test_a_recommender_trains_as_in_eager_with_one_look_up(kind, look_ups, linears):
    runs = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model, calls = kind(), Calls()
        call = (harp.ttf.compile(model, backend=calls, learn=1, aside=False) if compiled
                else model)
        runs.append(trained(model, call))
    for found, right in zip(*runs, strict=True):
        torch.testing.assert_close(found, right)
    assert runs[0][0][-1] < runs[0][0][0]
    assert (calls.count("embed.default") + calls.count("embed"), calls.count("linear")) == (
        look_ups, linears), calls.called
