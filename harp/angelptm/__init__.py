"""AngelPTM: train a model whose states do not fit into the device's memory.

A script for DeepSpeed runs with its import line changed (`docs/use/angelptm.md`):

    import harp.angelptm as deepspeed

    pages       where parameters, gradients, masters and moments lie
    plan        which page moves when: a pure function
    paged       parameters as code outside of the engine sees them
    window      parameters at addresses for good, on a CPU
    accelerator pages on a device that has memory of its own
    cache       pages in their tiers, and moves between them
    worker      the thread that runs a plan
    steps       the first step is traced, the later ones follow a plan
    engine      a model in pages, with DeepSpeed's calls
    config      DeepSpeed's JSON keys
    ranks       gathers, reductions and errors of several ranks
    reduction   gradients of several ranks, page by page
    adam        the optimizer's step over raw memory

Beside it stand:

    stages      a model as a pipeline, cut anywhere between its operators
    moe         a layer whose experts are spread over ranks: chunks travel while experts compute
    tokens      which tokens go where
    rows        rows of tensors by index

The simulator plans pages, too, and has no torch: names that need it are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from harp.angelptm.plan import CapacityError

if TYPE_CHECKING:
    from harp.angelptm.config import ConfigError
    from harp.angelptm.engine import Engine, initialize
    from harp.angelptm.paged import HiddenError
    from harp.angelptm.ranks import RankError
    from harp.angelptm.ranks import join_job as init_distributed
    from harp.angelptm.stages import CutError, Link, Memory, pipeline

_HOMES = {"ConfigError": "config", "Engine": "engine", "initialize": "engine",
          "HiddenError": "paged", "RankError": "ranks", "join_job": "ranks",
          "CutError": "stages", "Link": "stages", "Memory": "stages", "pipeline": "stages"}
_DEEPSPEED = {"init_distributed": "join_job"}
"""Names that DeepSpeed has for ours."""

__all__ = ["CapacityError", "ConfigError", "CutError", "Engine", "HiddenError", "Link", "Memory",
           "RankError", "init_distributed", "initialize", "pipeline"]


def __getattr__(name: str) -> Any:
    own = _DEEPSPEED.get(name, name)
    if own not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[own]}"), own)
