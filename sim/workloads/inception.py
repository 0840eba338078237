"""Inception-v3 for images of 299 x 299 (Szegedy et al., CVPR 2016), without the auxiliary head.

Every convolution has a batch normalisation behind it and no bias. Shapes are those of the network
that its authors released, as torchvision repeats it; the paper's table leaves branches out. What
branches give is copied where they join, and their ReLUs keep it besides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sim.workloads import layers as nn

if TYPE_CHECKING:
    from sim.workloads.layers import Layer

    Kernel = tuple[int, int]
    Branch = tuple[tuple[int, Kernel, int], ...]
    """Convolutions in a row: filters, kernel, and side of the output."""


def inception_v3_layers() -> list[Layer]:
    """Layers in forward order."""
    layers = _row("stem", 3, _STEM, 299, first=True)
    layers[5] = nn.pooled(layers[5], 64, 147, 73)
    layers[-1] = nn.pooled(layers[-1], 192, 71, 35)
    width, side = 192, 35
    for name, branches, pooled in _blocks():
        for number, branch in enumerate(branches):
            # The first of several keeps their input; a last one behind a pool has its own.
            beside = number > 0 and (pooled or number < len(branches) - 1)
            layers += _joined(_row(f"{name}.{number}", width, branch, side, beside=beside), branch)
        before, side = side, branches[0][-1][2]
        if pooled:
            layers[-1] = nn.pooled(layers[-1], width, before, side, beside=True)
        width = pooled * width + sum(_width(branch) for branch in branches)
    return [*layers, nn.linear("fc", 2048, 1000)]


_STEM: Branch = ((32, (3, 3), 149), (32, (3, 3), 147), (64, (3, 3), 147), (80, (1, 1), 73),
                 (192, (3, 3), 71))


def _blocks() -> list[tuple[str, list[Branch], bool]]:
    """Name, branches, and whether the input joins the output by a pool without convolution."""
    blocks: list[tuple[str, list[Branch], bool]] = []
    for letter, pool in zip("bcd", (32, 64, 64), strict=True):
        blocks.append((f"mixed5{letter}", [
            _same(35, (64, 1)), _same(35, (48, 1), (64, 5)),
            _same(35, (64, 1), (96, 3), (96, 3)), _same(35, (pool, 1))], False))
    blocks.append(("mixed6a", [((384, (3, 3), 17),),
                               (*_same(35, (64, 1), (96, 3)), (96, (3, 3), 17))], True))
    for letter, inner in zip("bcde", (128, 160, 160, 192), strict=True):
        wide, tall, one = (1, 7), (7, 1), (1, 1)
        blocks.append((f"mixed6{letter}", [
            _same(17, (192, 1)),
            ((inner, one, 17), (inner, wide, 17), (192, tall, 17)),
            ((inner, one, 17), (inner, tall, 17), (inner, wide, 17), (inner, tall, 17),
             (192, wide, 17)), _same(17, (192, 1))], False))
    blocks.append(("mixed7a", [
        (*_same(17, (192, 1)), (320, (3, 3), 8)),
        ((192, (1, 1), 17), (192, (1, 7), 17), (192, (7, 1), 17), (192, (3, 3), 8))], True))
    last: list[Branch] = [_same(8, (320, 1)), (*_same(8, (384, 1)), *_FORK),
                          (*_same(8, (448, 1), (384, 3)), *_FORK), _same(8, (192, 1))]
    return [*blocks, ("mixed7b", last, False), ("mixed7c", last, False)]


_FORK: Branch = ((384, (1, 3), 8), (384, (3, 1), 8))
"""Two convolutions beside each other on one input, joined at their outputs."""


def _same(side: int, *parts: tuple[int, int]) -> Branch:
    """Square convolutions in a row that keep the side of the image."""
    return tuple((filters, (kernel, kernel), side) for filters, kernel in parts)


def _width(branch: Branch) -> int:
    return branch[-1][0] * (2 if branch[-2:] == _FORK else 1)


def _row(name: str, channels: int, branch: Branch, before: int, *, first: bool = False,
         beside: bool = False) -> list[Layer]:
    """Convolutions in a row, the first of which has an input of side ``before``.

    ``beside``: another layer keeps that input.
    """
    layers: list[Layer] = []
    for number, (filters, kernel, side) in enumerate(branch):
        # Pools stand before convolutions of 1 x 1 alone, and those keep the side.
        stride = 1 if kernel == (1, 1) else round(before / side)
        layers += [nn.conv2d(f"{name}.{number}.conv", channels, filters, kernel, side,
                             stride=stride, bias=False, first=first and not number, beside=beside),
                   nn.batchnorm(f"{name}.{number}.bn", filters, side)]
        before = side
        beside = branch[number:] == _FORK
        channels = channels if beside else filters
    return layers


def _joined(layers: list[Layer], branch: Branch) -> list[Layer]:
    """A branch with what its ends' ReLUs keep."""
    ends = 2 if branch[-2:] == _FORK else 1
    for number in range(1, ends + 1):
        filters, _, side = branch[-number]
        last = layers[-2 * number + 1]
        layers[-2 * number + 1] = replace(last, kept=last.kept + filters * side**2)
    return layers
