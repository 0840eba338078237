"""The optimizer of a model in pages, as schedulers and scripts see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from harp.angelptm.adam import Adam
    from harp.angelptm.engine import Engine


class Optimizer(torch.optim.Optimizer):
    """The optimizer as schedulers and scripts see it: its groups. Its step is the engine's."""

    def __init__(self, groups: Any, adam: Adam, engine: Engine) -> None:
        super().__init__(groups, {
            "lr": adam.rate, "betas": adam.betas, "eps": adam.epsilon,
            "weight_decay": adam.decay, "decoupled": adam.decoupled})
        self._engine = engine

    def step(self, closure: Any = None) -> None:
        """Step as the engine does."""
        assert closure is None, "AngelPTM's optimizer takes no closure"
        self._engine.step()

    def stepped(self) -> None:
        """Let schedulers know that there was a step: they warn else."""
        self._opt_called = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: gradients end with their step."""
