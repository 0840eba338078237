"""Clicks whose ids are new each day: dynamic tables against hashed and complete dense ones."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
import torch
from torch import nn

from harp.ttf.embedding import TableOptimizer
from tests.support import ROOT
from tests.support.levels import long

EXAMPLE = ROOT / "examples" / "ttf"
DIM, DAYS, BATCH, LR = 8, 5, 500, 0.03
BYTES = 3 * 4 * (DIM + 1)
"""Of a dense id: weight and row, each with both moments of Adam."""


@pytest.fixture(scope="module")
def example():
    """The example's modules, which are scripts and no part of a package."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        spec = importlib.util.spec_from_file_location("wide_deep", EXAMPLE / "wide_deep.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(EXAMPLE))
    return module


class Dense(nn.Module):
    """A dense table for each feature, whose row an id finds by a function."""

    def __init__(self, rows, dim, place):
        super().__init__()
        self.bags = nn.ModuleDict({name: nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)
                                   for name in place})
        self.place = place
        for bag in self.bags.values():
            nn.init.uniform_(bag.weight, -0.01, 0.01)

    def forward(self, ids):
        return {name: bag(self.place[name](ids[name])) for name, bag in self.bags.items()}


def score(example, seed, tables, optimizer, end_of_day=lambda day: None):
    """The AUC of days that are scored before they are trained on, from the second on."""
    torch.manual_seed(seed)
    stream = example.Clicks(seed)
    model = example.WideDeep(tables, DIM)
    dense = torch.optim.Adam(model.top.parameters(), lr=3e-3)
    scores, clicked = [], []
    for day in range(DAYS):
        ids, clicks = stream.day()
        scores.append(example.train_day(model, (dense, optimizer), ids, clicks, BATCH))
        clicked.append(clicks)
        end_of_day(day)
    return example.auc(torch.cat(scores[1:]), torch.cat(clicked[1:]))


def dynamic(example, seed):
    """The AUC, and the most memory of the tables."""
    tables, most = example.dynamic(DIM), []
    modules = list(tables.bags.values())

    def end_of_day(day):
        most.append(sum(module.table.bytes for module in modules))
        for module in modules:
            module.evict(idle=0)
            module.table.clock = day + 1

    return score(example, seed, tables, TableOptimizer(tables), end_of_day), max(most)


def static(example, seed, rows, place):
    """The AUC of dense tables."""
    tables = Dense(rows, 1 + DIM, place)
    return score(example, seed, tables, torch.optim.SparseAdam(list(tables.parameters()), lr=LR))


def complete(example, seed):
    """The AUC of tables with a row for each id that will ever come."""
    stream = example.Clicks(seed)
    days = [stream.day()[0] for _ in range(DAYS)]
    known = {name: torch.cat([ids[name].reshape(-1) for ids in days]).unique() for name in days[0]}
    place = {name: (lambda ids, known=known[name]: torch.searchsorted(known, ids))
             for name in known}
    return static(example, seed, max(map(len, known.values())), place)


@long
@pytest.mark.parametrize("seed", range(3))
def test_dynamic_tables_learn_what_hashed_ones_of_their_size_do_not(example, seed):
    found, size = dynamic(example, seed)
    rows = size // BYTES // len(example.FEATURES)
    mix = np.uint64(0x9E3779B97F4A7C15).astype(np.int64).item()
    hashed = dict.fromkeys(example.FEATURES, lambda ids: ((ids * mix) >> 20) % rows)
    shared, own = static(example, seed, rows, hashed), complete(example, seed)
    print(f"AUC {found:.4f}; hashed {shared:.4f}; complete {own:.4f}")
    assert found >= shared + 0.01
    assert abs(found - own) <= 0.001


def test_the_area_under_the_curve_is_the_share_of_pairs_in_order(example):
    generator = torch.Generator().manual_seed(1)
    scores = torch.randperm(50, generator=generator).float()
    clicks = (torch.rand(50, generator=generator) < 0.4).float()
    pairs = [float(yes > no) for yes in scores[clicks > 0] for no in scores[clicks == 0]]
    assert example.auc(scores, clicks) == pytest.approx(np.mean(pairs))
