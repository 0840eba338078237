"""A model and a configuration of DeepSpeed become an engine, or one sentence says why not."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from harp.angelptm.adam import Adam
from harp.angelptm.config import ConfigError, read_config
from harp.angelptm.paged import PagedParameter
from harp.angelptm.paged_engine import Engine
from harp.angelptm.ranks import alike, find_ranks
from harp.angelptm.schedule import make_scheduler

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harp.angelptm.config import Config
    from harp.angelptm.paged_optimizer import Optimizer


def initialize(model: torch.nn.Module, config: Mapping[str, Any] | str | Path | None = None,
               model_parameters: Any = None, optimizer: Any = None, args: Any = None,
               config_params: Any = None, lr_scheduler: Any = None, training_data: Any = None,
               collate_fn: Any = None, dist_init_required: bool | None = None, **more: Any,
               ) -> tuple[Engine, Optimizer, DataLoader[Any] | None, Any]:
    """Put a model into pages, as deepspeed.initialize does.

    Returns engine, optimizer, a loader of ``training_data`` if there is such, and the scheduler.
    The loader gives this rank its share, by micro-batches, in an order that `set_epoch` of its
    sampler changes. The scheduler is the configuration's, or ``lr_scheduler``, which may be a
    function that makes it for the optimizer. It is stepped and saved by the engine, and
    steps at each of its steps; keep one that steps rarer to yourself.
    Raises ConfigError for a wrong configuration, CapacityError for tiers that are too small, and
    RankError where ranks disagree.
    """
    del dist_init_required  # a job of several ranks is joined where that is needed
    if wrong := sorted(name for name, value in more.items() if value is not None):
        raise ConfigError(f"initialize: {', '.join(wrong)} has no effect here: leave it out")
    given = config or config_params or getattr(args, "deepspeed_config", None)
    if given is None:
        raise ConfigError("initialize needs config=, an object or the path of a JSON file")
    ranks = find_ranks()
    with alike(ranks):
        read = read_config(given, ranks.ranks if ranks else 1)
        adam = read.adam
        if optimizer is not None:
            groups, adam = _groups_of(optimizer)
        else:
            groups = _as_groups(model_parameters if model_parameters is not None
                                else model.parameters())
        if adam is None:
            raise ConfigError("the configuration has no optimizer, and none was given: "
                              "optimizer.type Adam or AdamW is possible")
        check_model(model, ranks.ranks if ranks else 1)
        if read.schedule is not None:
            if lr_scheduler is not None:
                raise ConfigError("the configuration has a scheduler, and lr_scheduler= was given: "
                                  "one of both is possible")
            lr_scheduler = partial(make_scheduler, read.schedule)
    if ranks:
        ranks.check_same(_to_agree_on(model, read, adam, groups))
    engine = Engine(model, read, groups, adam, ranks)
    if callable(lr_scheduler):
        lr_scheduler = lr_scheduler(engine.optimizer)
    engine.lr_scheduler = lr_scheduler
    loader = None if training_data is None else DataLoader(
        training_data, read.micro_batch, collate_fn=collate_fn, sampler=DistributedSampler(
            training_data, engine.world_size, engine.global_rank))
    return engine, engine.optimizer, loader, lr_scheduler


def _to_agree_on(model: torch.nn.Module, config: Config, adam: Adam, groups: Any,
                 ) -> dict[str, Any]:
    """Give what must be the same at all ranks."""
    return {"zero_optimization.stage": config.stage, "angelptm.page_bytes": config.page_bytes,
            "angelptm.device_bytes": config.device_bytes, "angelptm.host_bytes": config.host_bytes,
            "angelptm.disk_bytes": config.disk_bytes, "a disk": config.disk_path is not None,
            "gradient_accumulation_steps": config.accumulation,
            "gradient_clipping": config.clipping, "precision": config.precision,
            "loss scale": config.scaling, "angelptm.update": config.update,
            "angelptm.staleness": config.staleness, "optimizer": adam, "scheduler": config.schedule,
            **{f"parameter {name}": f"{list(one.shape)}{'' if one.requires_grad else ', frozen'}"
               for name, one in model.named_parameters()},
            **{f"buffer {name}": list(one.shape) for name, one in model.named_buffers()},
            "groups of parameters": [
                {name: value if name != "params" else len(list(value))
                 for name, value in group.items()} for group in groups]}


def check_model(model: torch.nn.Module, ranks: int) -> None:
    """Refuse a model that pages cannot hold. ConfigError."""
    from harp.angelptm.moe import MoE

    for name, one in (*model.named_parameters(), *model.named_buffers()):
        if type(one) is PagedParameter:
            raise ConfigError(f"the model's parameter {name} is in pages already: destroy() the "
                              "engine that has it and make the model anew, or use that engine")
        if one.is_meta:
            raise ConfigError(f"the model's tensor {name} is on the device meta and has no values: "
                              "make the model on the CPU")
    for name, module in model.named_modules() if ranks > 1 else ():
        if isinstance(module, MoE):
            raise ConfigError(f"the layer {name} has other experts at each of the {ranks} ranks, "
                              "and pages of several ranks hold one model: one rank is possible, or "
                              "torch.optim without pages, with expert_parameters() left out of DDP")


def _as_groups(parameters: Any) -> list[dict[str, Any]]:
    """Give groups of lists: an iterator would be at its end for its next reader."""
    found = list(parameters)
    if not found or not isinstance(found[0], dict):
        return [{"params": [_parameter_of(one) for one in found]}]
    return [{**group, "params": [group["params"]] if isinstance(group["params"], torch.Tensor)
             else [_parameter_of(one) for one in group["params"]]} for group in found]


def _parameter_of(given: Any) -> Any:
    """Give a parameter that may have its name before it, as torch's optimizers take it."""
    return given[1] if isinstance(given, tuple) else given


def _groups_of(optimizer: Any) -> tuple[list[dict[str, Any]], Adam]:
    """Give an optimizer's own groups, so that a scheduler of it sets the engine's rates."""
    if type(optimizer) not in {torch.optim.Adam, torch.optim.AdamW} or any(
            group["amsgrad"] or group["maximize"] for group in optimizer.param_groups):
        raise ConfigError(f"the optimizer is {type(optimizer).__name__}: torch.optim.Adam and "
                          "AdamW are possible, without amsgrad and maximize")
    decoupled = isinstance(optimizer, torch.optim.AdamW)
    for group in optimizer.param_groups:
        group["decoupled"] = group.get("decoupled_weight_decay", decoupled)
    return optimizer.param_groups, Adam(decoupled=decoupled)
