"""The configuration: DeepSpeed's JSON keys for batch, precision, clipping, ZeRO, offload and disk.

Keys that are of no use here, because memory is planned, are read and have no effect; the table
below names them. Every other key is refused by its name, with the nearest right one.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harp.angelptm.adam import Adam
from harp.angelptm.pages import PAGE_BYTES
from harp.angelptm.schedule import KINDS, Schedule
from harp.nearest import did_you_mean
from harp.reading import FileError, Node, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST = 1 << 50
MOST_SCALE = 2.0 ** 127
"""Of a loss: the largest power of two that a float32 holds."""
MOST_STALE = 64
"""Steps; a training that lacks more gradients is not the one that was asked for."""


def _page_bytes(node: Node) -> int:
    found = node.whole(8192, 1 << 30)
    if found % 8192:
        node.fail("a multiple of 8192")
    return found


def _folder(node: Node) -> str:
    return node.text() or node.fail("the path of a folder")


READERS: dict[str, Callable[[Node], Any]] = {
    **dict.fromkeys(("device_bytes", "host_bytes", "disk_bytes"), lambda node: node.whole(0, MOST)),
    "disk_path": _folder, "page_bytes": _page_bytes,
    "io": lambda node: node.one_of("auto", "io_uring", "threads"),
    "update": lambda node: node.one_of("sync", "async"),
    "staleness": lambda node: node.whole(1, MOST_STALE),
    "device": lambda node: node.one_of("accelerator", "cpu")}
"""Of AngelPTM's own keys, which have the names of the configuration's fields."""
OFFLOAD = ("device", "nvme_path", "pin_memory", "buffer_count", "buffer_size", "fast_init",
           "max_in_cpu", "pipeline_read", "pipeline_write", "ratio")
MUST_BE_FALSE = ("fp16_master_weights_and_grads", "auto_cast", "consecutive_hysteresis")
"""Of fp16: DeepSpeed's own examples have them, at their defaults."""
KEYS: dict[str, tuple[str, ...]] = {
    "": ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
         "gradient_clipping", "optimizer", "scheduler", "fp16", "bf16", "zero_optimization", "aio",
         "angelptm", "steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer",
         "zero_force_ds_cpu_optimizer", "prescale_gradients"),
    "optimizer": ("type", "params"),
    "scheduler": ("type", "params"),
    "scheduler.params": (
        "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "total_num_steps",
        "warmup_min_ratio", "cos_min_ratio", "last_batch_iteration"),
    "optimizer.params": ("lr", "betas", "eps", "weight_decay", "adam_w_mode", "torch_adam"),
    "fp16": ("enabled", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis",
             "min_loss_scale", *MUST_BE_FALSE),
    "bf16": ("enabled",),
    "zero_optimization": (
        "stage", "offload_param", "offload_optimizer", "overlap_comm", "contiguous_gradients",
        "reduce_bucket_size", "allgather_bucket_size", "allgather_partitions", "reduce_scatter",
        "sub_group_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
        "stage3_max_live_parameters", "stage3_max_reuse_distance", "round_robin_gradients",
        "stage3_gather_16bit_weights_on_model_save", "ignore_unused_parameters", "cpu_offload"),
    "zero_optimization.offload_param": OFFLOAD,
    "zero_optimization.offload_optimizer": OFFLOAD,
    "aio": ("block_size", "queue_depth", "thread_count", "intra_op_parallelism", "single_submit",
            "overlap_events", "use_gds"),
    "angelptm": tuple(READERS),
}
"""Keys by the object that they are in."""


class ConfigError(ValueError):
    """A configuration cannot be used; the message is one sentence."""


@dataclass(frozen=True)
class Scaling:
    """Scaling of the loss in float16: DeepSpeed's rules and defaults."""

    initial: float = 65536.0
    window: int = 1000
    hysteresis: int = 2
    least: float = 1.0
    fixed: bool = False


@dataclass(frozen=True)
class Config:
    """The configuration of an engine."""

    accumulation: int = 1
    micro_batch: int = 1
    """Samples that a rank has in a micro-batch, for scripts that ask; AngelPTM reads no data."""
    clipping: float = 0.0
    precision: str = "float32"
    adam: Adam | None = None
    schedule: Schedule | None = None
    scaling: Scaling | None = None
    stage: int = 3
    page_bytes: int = PAGE_BYTES
    device_bytes: int | None = None
    host_bytes: int | None = None
    disk_bytes: int = 0
    disk_path: str | None = None
    io: str = "auto"
    update: str = "sync"
    staleness: int = 1
    """Most steps that a late update may be behind."""
    device: str = "accelerator"
    """Of training, where torch has one; or ``cpu``."""


def read_config(given: Mapping[str, Any] | str | Path, ranks: int = 1) -> Config:
    """Read a configuration: an object, or the path of a JSON file. Raises ConfigError."""
    name = "the configuration" if not isinstance(given, str | Path) else str(given)
    try:
        text = json.dumps(given) if not isinstance(given, str | Path) else Path(given).read_text(
            "utf-8")
        return _read(parse(text), ranks)
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from None
    except (FileError, TypeError) as error:
        raise ConfigError(f"{name}: {error}") from None


def _read(root: Node, ranks: int) -> Config:
    _check_keys(root, "")
    half, bfloat = (node is not None and node.flag() for node in (
        _found(root, "fp16", "enabled"), _found(root, "bf16", "enabled")))
    if half and bfloat:
        raise FileError("fp16.enabled and bf16.enabled are both true: one is possible")
    stage = _found(root, "zero_optimization", "stage")
    config = Config(
        **_batch(root, ranks), **_memory(root), clipping=_number(root, "gradient_clipping", 0.0),
        adam=_adam(root["optimizer"]) if root.get("optimizer") else None,
        schedule=_schedule(root["scheduler"]) if root.get("scheduler") else None,
        scaling=_scaling(root["fp16"]) if half else None, stage=stage.whole(0, 3) if stage else 0,
        precision="float16" if half else "bfloat16" if bfloat else "float32")
    node = _found(root, "angelptm", "staleness")
    if node and config.update != "async":
        raise FileError("angelptm.staleness is of late updates: angelptm.update async has them")
    if node and config.staleness > 1 and (config.clipping or config.scaling):
        # Gradients of several steps are one sum, and each of these steps has a scale of its own.
        node.fail("with gradient_clipping or fp16 only 1")
    return config


def _found(root: Node, where: str, name: str) -> Node | None:
    """Give the value of a key of an object; None if the object or the key is missing."""
    node = root.get(where)
    return node.get(name) if node is not None else None


def _number(node: Node, name: str, usual: float, most: float = math.inf) -> float:
    value = node.get(name)
    return value.number(0.0, most) if value is not None else usual


def _steps(node: Node, name: str, usual: int) -> int:
    value = node.get(name)
    return value.whole(1, MOST) if value is not None else usual


def _check_keys(node: Node, where: str) -> None:
    allowed = KEYS[where]
    for key, value in node.items():
        path = f"{where}.{key}" if where else key
        if key not in allowed:
            more = did_you_mean(key, allowed) or f"; keys there are {', '.join(allowed)}"
            raise FileError(f"{path} is no key that AngelPTM knows{more}")
        if path in KEYS and not value.is_none():
            _check_keys(value, path)


def _batch(root: Node, ranks: int) -> dict[str, Any]:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    nodes = [root.get(name) for name in names]
    whole, micro, steps = (node.whole(1, MOST) if node is not None else None for node in nodes)
    if steps is None:
        steps = max(whole // (micro * ranks), 1) if whole and micro else 1
    if whole and micro and whole != micro * steps * ranks:
        raise FileError(f"train_batch_size is {whole}: {micro * steps * ranks} is possible, which "
                        f"is {names[1]} * {names[2]} * ranks, {micro} * {steps} * {ranks}")
    if whole and whole % (steps * ranks):
        raise FileError(f"train_batch_size is {whole}: a multiple of {names[2]} * ranks, "
                        f"{steps} * {ranks}, is possible")
    return {"accumulation": steps, "micro_batch": micro or (whole or 1) // (steps * ranks) or 1}


def _adam(node: Node) -> Adam:
    kind = node["type"].one_of("Adam", "AdamW")
    params = node.get("params") or parse("{}")
    mode = params.get("adam_w_mode")
    decoupled = mode is None or mode.flag()  # as DeepSpeed has it, also where the type is Adam
    pair, betas = [0.9, 0.999], params.get("betas")
    if betas is not None:
        pair = [beta.number(0.0, 1.0) for beta in betas.each()]
        if len(pair) != 2 or 1.0 in pair:
            betas.fail("two numbers below 1")
    return Adam(_number(params, "lr", 1e-3), (pair[0], pair[1]), _number(params, "eps", 1e-8),
                _number(params, "weight_decay", 0.01 if kind == "AdamW" else 0.0), decoupled)


def _schedule(node: Node) -> Schedule | None:
    if node.get("type") is None:
        return None  # as DeepSpeed has it
    kind = node["type"].one_of(*KINDS)
    params = node.get("params") or parse("{}")
    cosine = kind == "WarmupCosineLR"
    own = {"warmup_num_steps", "warmup_type", "last_batch_iteration",
           *(("warmup_min_ratio", "cos_min_ratio") if cosine else
             ("warmup_min_lr", "warmup_max_lr")),
           *(() if kind == "WarmupLR" else ("total_num_steps",))}
    if others := [key for key, _ in params.items() if key not in own]:
        raise FileError(f"scheduler.params.{others[0]}: {kind} has no such key; allowed: "
                        + ", ".join(sorted(own)))
    begin = params.get("last_batch_iteration")
    if begin is not None and begin.plain() != -1:
        begin.fail("-1, the beginning of a training,")
    how, most = params.get("warmup_type"), params.get("warmup_max_lr")
    return Schedule(
        kind, _steps(params, "warmup_num_steps", 1000),
        0 if kind == "WarmupLR" else params["total_num_steps"].whole(1, MOST),
        _number(params, "warmup_min_ratio" if cosine else "warmup_min_lr", 0.0),
        most.number(0.0) if most is not None else 1e-3 if kind == "WarmupDecayLR" else None,
        _number(params, "cos_min_ratio", 1e-4),
        how is not None and how.one_of("log", "linear") == "linear")


def _scaling(node: Node) -> Scaling:
    usual = Scaling()
    for name in MUST_BE_FALSE:
        if (key := node.get(name)) is not None and key.flag():
            key.fail("only false")
    fixed = _number(node, "loss_scale", 0.0, MOST_SCALE)
    power = _number(node, "initial_scale_power", 16, math.log2(MOST_SCALE))
    return Scaling(
        fixed or 2.0 ** power, _steps(node, "loss_scale_window", usual.window),
        _steps(node, "hysteresis", usual.hysteresis),
        _number(node, "min_loss_scale", usual.least, MOST_SCALE), bool(fixed))


def _memory(root: Node) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("offload_param", "offload_optimizer"):
        offload = _found(root, "zero_optimization", name)
        if offload is None or offload.is_none():
            continue
        device = offload.get("device")
        if device is not None and device.one_of("none", "cpu", "nvme") == "nvme":
            folder = _folder(offload["nvme_path"])
            if found.setdefault("disk_path", folder) != folder:
                offload["nvme_path"].fail(f"the folder of offload_param, {found['disk_path']},")
    own = root.get("angelptm")
    found |= {name: READERS[name](node) for name, node in (own.items() if own else ())}
    if own is not None and found.get("disk_bytes") and "disk_path" not in found:
        raise FileError("angelptm.disk_bytes needs a disk: give angelptm.disk_path, or "
                        "offload_optimizer with device nvme and nvme_path")
    return found
