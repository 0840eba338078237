"""Adam's step over raw memory (`cnet/lightcc/adam.h`): a part of a tensor at a time.

Constants of a step are worked out in float64, as torch.optim does, and rounded once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harp._cnet import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

ELEMENTS: dict[str, int] = {name: getattr(lib, f"HARP_ELEMENT_{name.upper()}")
                            for name in ("float32", "bfloat16", "float16")}
"""Types that gradients and parameters may have."""


@dataclass(frozen=True)
class Adam:
    """The settings of Adam (arXiv 1412.6980), or of AdamW (arXiv 1711.05101) if ``decoupled``.

    The defaults are those of torch.optim.AdamW.
    """

    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    decay: float = 1e-2
    decoupled: bool = True

    def at(self, step: int, scale: float = 1.0) -> Any:
        """Give the C struct of a step, counted from 1; gradients are scaled."""
        beta1, beta2 = self.betas
        return ffi.new("struct harp_adam *", {
            "rate": self.rate / (1 - beta1 ** step),
            "keep": 1 - self.rate * self.decay if self.decoupled else 1.0,
            "decay": 0.0 if self.decoupled else self.decay,
            "beta1_rest": 1 - beta1, "beta2": beta2, "beta2_rest": 1 - beta2,
            "root_correction": math.sqrt(1 - beta2 ** step),
            "epsilon": self.epsilon, "scale": scale})


def update(parts: Sequence[int] | Sequence[torch.Tensor], elements: int, element: str,
           how: Any) -> None:
    """Make a step; other threads of Python run meanwhile.

    The parts are masters, both moments, gradients and, where they are no masters, parameters: their
    addresses, or bytes of an accelerator that begin there.
    """
    if isinstance(parts[0], int):
        wide = (ffi.cast("float *", address) for address in parts[:3])
        own = (ffi.cast("uint8_t *", address) for address in [*parts, 0][3:5])
        lib.harp_adam_step(*wide, *own, elements, ELEMENTS[element], how)
        return
    import torch
    types = [torch.float32] * 3 + [getattr(torch, element)] * 2
    _update_tensors([part[:elements * dtype.itemsize].view(dtype)
                     for part, dtype in zip(parts, types, strict=False)], how)


def _update_tensors(tensors: Sequence[torch.Tensor], how: Any) -> None:
    """Make a step on an accelerator.

    Operations and their order are those of `cnet/lightcc/adam_loops.h`: so are the bits, where a
    device rounds each operation.
    """
    masters, means, squares, gradients, *parameters = tensors
    slope = gradients.float() * how.scale
    if how.decay:
        slope += masters * how.decay
    means += (slope - means) * how.beta1_rest
    squares.mul_(how.beta2).add_((slope * how.beta2_rest).mul_(slope))
    below = squares.sqrt().div_(how.root_correction).add_(how.epsilon)
    masters.mul_(how.keep).sub_((means * how.rate).div_(below))
    for narrow in parameters:
        narrow.copy_(masters)
