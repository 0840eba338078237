"""Wide & Deep, DeepFM, DLRM and MMoE: large tables of embeddings below small networks.

The tables have a row for each of the 33,762,577 values that the 26 categorical features of Criteo's
public click logs (Kaggle 2014) take, beside 13 numerical ones, as Naumov et al. 2019 (DLRM) count.
Such tables are spread over the GPUs (ibid., section 4): a sample's ids go to their owners, rows
come back, later their gradients go, and only the network above is averaged. Every id is counted, as
if no two samples of a batch had the same; `harp.ttf.embedding` sends each distinct one once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.workloads import layers as nn
from sim.workloads.layers import Layer, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

VALUES = 33_762_577
"""Rows of all tables together."""
CATEGORICAL, NUMERICAL = 26, 13
TERABYTE_VALUES = 187_767_399
"""The same of Criteo's larger logs (Terabyte), where a feature has 40 million values at most: the
sum of the tables of MLPerf's DLRM (mlcommons/inference, recommendation/dlrm)."""
EXPERTS, EXPERT_WIDTH, TOWER_WIDTH, TASKS = 8, 16, 8, 2
"""Of MMoE, as its authors set them beside a shared layer of 113."""


def wide_and_deep_layers() -> list[Layer]:
    """Cheng et al. 2016, figure 4: embeddings of 32, three hidden layers, and a linear model.

    Their own features are not public; with Criteo's the input of the network is 26 x 32 + 13 wide,
    where theirs is some 1,200. Crossed features of the wide part are left out. A row has its weight
    of the wide part beside its vector, so that one look-up brings both.
    """
    width = 32
    inputs = CATEGORICAL * width + NUMERICAL
    return [_tables(width + 1), *_mlp("fc", inputs, (1024, 512, 256, 1))]


def deepfm_layers() -> list[Layer]:
    """Guo et al. 2017, section 3.1: embeddings of 10 for the FM and for three layers of 400."""
    width, fields = 10, CATEGORICAL + NUMERICAL
    # The second order of an FM is (sum of vectors)^2 - sum of squares: three operations an element.
    order2 = Layer("fm", (Tensor("fm.numerical", NUMERICAL * (width + 1)),),
                   3 * fields * width, 6 * fields * width)
    return [_tables(width + 1), order2, *_mlp("fc", fields * width, (400, 400, 400, 1))]


def dlrm_layers(width: int = 16, bottom: Sequence[int] = (512, 256, 64),
                top: Sequence[int] = (512, 256, 1), rows: int = VALUES) -> list[Layer]:
    """Naumov et al. 2019, section 5.1, and bench/dlrm_s_criteo_kaggle.sh of its authors.

    The network below makes a vector of the numerical features, and each pair of the 27 vectors is
    multiplied; the products go into the network above beside the first vector.
    """
    vectors = CATEGORICAL + 1
    pairs = vectors * (vectors - 1) // 2
    return [*_mlp("bottom", NUMERICAL, (*bottom, width), first=True),
            _tables(width, rows),
            nn.product("interaction", 2 * vectors * vectors * width),
            *_mlp("top", width + pairs, top)]


def dlrm_terabyte_layers() -> list[Layer]:
    """MLPerf's DLRM of 2020: vectors of 128, and Criteo's larger logs (24 billion parameters)."""
    return dlrm_layers(128, (512, 256), (1024, 1024, 512, 256, 1), TERABYTE_VALUES)


def mmoe_layers() -> list[Layer]:
    """Ma et al. 2018: experts of one layer, and for each task a gate over them and a tower.

    Their features are not public; these have Wide & Deep's tables. All ranks hold all experts.
    """
    inputs = CATEGORICAL * 32 + NUMERICAL
    return [_tables(32), *mixture_layers(inputs)]


def mixture_layers(inputs: int) -> list[Layer]:
    """Experts, gates and towers of MMoE over ``inputs`` elements."""
    layers = [nn.linear(f"expert{number}", inputs, EXPERT_WIDTH) for number in range(EXPERTS)]
    for task in range(TASKS):
        mixed = 2 * EXPERTS * EXPERT_WIDTH  # a weighted sum of the experts
        layers += [nn.linear(f"gate{task}", inputs, EXPERTS, bias=False),
                   nn.product(f"mixture{task}", mixed),
                   *_mlp(f"tower{task}.fc", EXPERT_WIDTH, (TOWER_WIDTH, 1))]
    return layers


def _tables(width: int, rows: int = VALUES) -> Layer:
    return nn.spread_tables("embeddings", rows, width, CATEGORICAL)


def _mlp(name: str, inputs: int, widths: Sequence[int], *, first: bool = False) -> list[Layer]:
    layers = []
    for number, width in enumerate(widths, 1):
        layers.append(nn.linear(f"{name}{number}", inputs, width, first=first and number == 1))
        inputs = width
    return layers
