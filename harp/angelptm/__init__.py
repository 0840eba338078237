"""AngelPTM: train a model whose states do not fit into the device's memory.

A script for DeepSpeed runs with its import line changed (`docs/use/angelptm.md`):

    import harp.angelptm as deepspeed

    pages             where parameters, gradients, masters and moments lie
    page_plan         moves of pages, in order: a pure function
    step_trace        the jobs of a step, from the pages that it touched
    paged             parameters as code outside of the engine sees them
    state_window      parameters at addresses for good, on a CPU
    accelerator_pages pages on a device that has memory of its own
    cache             pages in their tiers, and moves between them
    worker            the thread that runs a plan
    steps             the first step is traced, the later ones follow a plan
    state_bytes       masters, means and squares as bytes in their pages
    updates           gradients of a step, and how they are applied
    paged_engine      a model in pages, with DeepSpeed's calls
    watch             operators, before and after they run
    paged_optimizer   the optimizer as scripts see it
    tiers             pages of each tier, by the configuration's caps
    saving            contents of a checkpoint, and where each lies
    checkpoint_files  its files
    start             a model and a configuration become an engine
    script            other functions that a script for DeepSpeed calls
    scaler            the scale of the loss in float16
    config            DeepSpeed's JSON keys
    ranks             gathers, reductions and errors of several ranks
    reduction         gradients of several ranks, page by page
    adam              the optimizer's step over raw memory
    schedule          DeepSpeed's schedules of the learning rate

Beside it stand:

    stages            a model as a pipeline, cut anywhere between its operators
    moe               a layer with experts on many ranks: chunks travel while experts compute
    tokens            the ranks that tokens go to
    rows              rows of tensors by index

The simulator plans pages, too, and has no torch: names that need it are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harp.angelptm.page_plan import CapacityError
from harp.lazy_names import lazy_names

if TYPE_CHECKING:
    from torch import distributed as comm

    from harp.angelptm.config import ConfigError
    from harp.angelptm.paged import HiddenError
    from harp.angelptm.paged_engine import Engine
    from harp.angelptm.ranks import RankError
    from harp.angelptm.script import (
        add_config_arguments,
        get_accelerator,
        init_distributed,
        zero,
    )
    from harp.angelptm.stages import CutError, Link, Memory, pipeline
    from harp.angelptm.start import initialize

_HOMES = {"ConfigError": "config", "Engine": "paged_engine", "initialize": "start",
          "HiddenError": "paged", "RankError": "ranks", "add_config_arguments": "script",
          "get_accelerator": "script", "init_distributed": "script", "zero": "script",
          "CutError": "stages", "Link": "stages", "Memory": "stages", "pipeline": "stages"}

__all__ = ["CapacityError", "ConfigError", "CutError", "Engine", "HiddenError", "Link", "Memory",
           "RankError", "add_config_arguments", "comm", "get_accelerator", "init_distributed",
           "initialize", "pipeline", "zero"]

__getattr__ = lazy_names(__name__, {"comm": "torch.distributed:"} | {
    name: f"{__name__}.{home}:{name}" for name, home in _HOMES.items()})
