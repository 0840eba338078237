"""The optimizer of a model in pages, as schedulers and scripts see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from harp.angelptm.config import ConfigError

if TYPE_CHECKING:
    from harp.angelptm.adam import Adam
    from harp.angelptm.paged_engine import Engine


class Optimizer(torch.optim.Optimizer):
    """The optimizer as schedulers and scripts see it: its groups. Its step is the engine's."""

    def __init__(self, groups: Any, adam: Adam, engine: Engine) -> None:
        super().__init__(groups, {
            "lr": adam.rate, "betas": adam.betas, "eps": adam.epsilon,
            "weight_decay": adam.decay, "decoupled": adam.decoupled})
        self._engine = engine

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, before there are pages. ConfigError later: they have no room for more."""
        if hasattr(self, "_engine"):
            raise ConfigError("a group of parameters cannot be added: they come into pages in "
                              "initialize, all at once")
        super().add_param_group(param_group)

    def step(self, closure: Any = None) -> None:
        """Step as the engine does."""
        assert closure is None, "AngelPTM's optimizer takes no closure"
        self._engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients as the engine does; those of a step end with it."""
        self._engine.zero_grad(set_to_none)
