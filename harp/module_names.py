"""Names of a model's modules and parameters, whatever wraps the model.

DDP, FSDP1, torch.compile and `harp.ttf.compile` put a module around another one, and with it a part
before each name: ``module.head.weight``, ``_orig_mod.head.weight``. A checkpoint or a state has the
plain name, ``head.weight``, so that it loads into a model that is wrapped otherwise, or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

WRAPPED = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""Names of what is wrapped, in torch's wrappers and in ours."""


def plain_name(model: nn.Module, name: str) -> str:
    """Give the name of a module or parameter of a model without the parts that wrappers add."""
    kept, here = [], model
    for part in name.split("."):
        inner = here._modules.get(part)
        if inner is None or part not in WRAPPED or not _is_wrapper(here):
            kept.append(part)
        here = here if inner is None else inner
    return ".".join(kept)


def _is_wrapper(module: nn.Module) -> bool:
    """Whether a module has one other and no parameters of its own, so that no names can meet."""
    return (len(module._modules) == 1 and not module._parameters
            and not isinstance(module, nn.ModuleDict))  # which may have others tomorrow


def modules_by_name(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Give a model's modules with their plain names; a wrapper comes before what it wraps."""
    for name, module in model.named_modules():
        yield plain_name(model, name) if name else "", module
