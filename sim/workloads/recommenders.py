"""Wide & Deep and DeepFM: large tables of embeddings below small networks.

The tables have a row for each of the 33,762,577 values that the 26 categorical features of Criteo's
public click logs (Kaggle 2014) take, beside 13 numerical ones, as Naumov et al. 2019 (DLRM) count.
Such tables are spread over the GPUs, which exchange vectors (ibid., section 4): a table here is an
expert that every sample asks, and only the network above is averaged.
"""

from __future__ import annotations

from sim.workloads import layers as nn
from sim.workloads.layers import Layer, Tensor

VALUES = 33_762_577
"""Rows of all tables together."""
CATEGORICAL, NUMERICAL = 26, 13


def wide_and_deep_layers() -> list[Layer]:
    """Cheng et al. 2016, figure 4: embeddings of 32, three hidden layers, and a linear model.

    Their own features are not public; with Criteo's the input of the network is 26 x 32 + 13 wide,
    where theirs is some 1,200. Crossed features of the wide part are left out.
    """
    width = 32
    inputs = CATEGORICAL * width + NUMERICAL
    return [_tables("wide", 1), _tables("embeddings", width), *_network(inputs, (1024, 512, 256))]


def deepfm_layers() -> list[Layer]:
    """Guo et al. 2017, section 3.1: embeddings of 10 for the FM and for three layers of 400."""
    width, fields = 10, CATEGORICAL + NUMERICAL
    # The second order of an FM is (sum of vectors)^2 - sum of squares: three operations an element.
    order2 = Layer("fm", (Tensor("fm.numerical", NUMERICAL * (width + 1)),),
                   3 * fields * width, 6 * fields * width)
    return [_tables("fm.linear", 1), _tables("embeddings", width), order2,
            *_network(fields * width, (400, 400, 400))]


def _tables(name: str, width: int) -> Layer:
    return Layer(name, (), 0, 0, CATEGORICAL * width, (Tensor(f"{name}.weight", VALUES * width),))


def _network(inputs: int, widths: tuple[int, ...]) -> list[Layer]:
    layers = []
    for number, width in enumerate((*widths, 1), 1):
        layers.append(nn.linear(f"fc{number}", inputs, width))
        inputs = width
    return layers
