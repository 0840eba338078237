"""`TableOptimizer(model)`: makes the steps of all dynamic tables of a model.

It is a torch.optim.Optimizer with a group for each module, so schedulers and GradScaler work with
it:

    dense = torch.optim.Adam(p for n, p in model.named_parameters() if not n.endswith("anchor"))
    sparse = TableOptimizer(model)
    loss.backward(); dense.step(); sparse.step(); dense.zero_grad(); sparse.zero_grad()
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from harp.ttf.embedding.modules import Looking
from harp.ttf.embedding.table import apply

if TYPE_CHECKING:
    from collections.abc import Callable

    from harp.ttf.embedding.optimizers import Settings
    from harp.ttf.embedding.table import Table


class TableOptimizer(torch.optim.Optimizer):
    """Make the steps of all dynamic tables of a model."""

    has_tables = True
    """Gradients wait there, and not in parameters."""
    _step_supports_amp_scaling = True  # GradScaler then leaves scale and found_inf to `step`

    def __init__(self, model: torch.nn.Module) -> None:
        """Find the modules. ValueError if there is none."""
        modules: dict[int, Looking] = {}  # a collection before its bags, which share its anchor
        for module in model.modules():
            if isinstance(module, Looking) and module.tables:
                modules.setdefault(id(module.anchor), module)
        if not modules:
            raise ValueError(f"TableOptimizer: {type(model).__name__} has no dynamic embedding")
        super().__init__([{"params": [module.anchor], **asdict(module.optimizer)}
                          for module in modules.values()], {})
        self._modules = list(modules.values())

    def _tables(self) -> list[tuple[Table, Settings]]:
        """Give the tables that have gradients, with the settings of this step."""
        return [(table, type(module.optimizer)(**{key: group[key]
                                                  for key in asdict(module.optimizer)}))
                for module, group in zip(self._modules, self.param_groups, strict=True)
                if module.anchor.grad is not None for table in module.tables]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step. FloatingPointError if a gradient is not finite: then nothing is changed.

        Under a GradScaler such a step is skipped. Gradients that wait are not `unscale_`'s to see:
        `scaler.step` divides them by the scale.
        """
        if hasattr(self, "found_inf") and getattr(self, "grad_scale", None) is None:
            raise RuntimeError("scaler.unscale_ was called with a TableOptimizer: call it with the "
                               "dense one only, and scaler.step with both")
        loss = None if closure is None else closure()
        tables, scale = self._tables(), getattr(self, "grad_scale", None)
        skipped = bool(getattr(self, "found_inf", 0))
        if not skipped and all(bool(torch.isfinite(module.anchor.grad).all())
                               for module in self._modules if module.anchor.grad is not None):
            apply(tables, 1.0 if scale is None else 1 / float(scale))
            return loss
        for table, _ in tables:
            table.drop()
        if not skipped:
            raise FloatingPointError("a gradient of an embedding is not finite: no row was changed")
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients that wait."""
        super().zero_grad(set_to_none)
        for module in self._modules:
            for table in module.tables:
                table.drop()
