"""The model of reference.py in torch."""

import numpy as np
import torch

from tests.harp.lightcc.outer import reference

ELEMENTS = sum(int(np.prod(shape)) for shape in reference.SHAPES.values())


class Quadratic(torch.nn.Module):
    """Parameters that begin with the reference's values, each moved by ``offset``."""

    def __init__(self, offset=0):
        super().__init__()
        values, first = reference.start(ELEMENTS) + offset, 0
        for name, shape in reference.SHAPES.items():
            size = int(np.prod(shape))
            part = torch.tensor(values[first:first + size], dtype=torch.float32).view(shape)
            self.register_parameter(name, torch.nn.Parameter(part))
            first += size

    def forward(self, weights, targets):
        flat = torch.cat([one.reshape(-1) for one in self.parameters()])
        return 0.5 * (weights * flat - targets).square().sum()
