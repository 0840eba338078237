"""The configuration: DeepSpeed's JSON keys for batch, precision, clipping, ZeRO, offload and disk.

Keys that are of no use here, because memory is planned, are read and have no effect; the table
below names them. Every other key is refused by its name, with the nearest right one.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from harp.angelptm.adam import Adam
from harp.angelptm.pages import PAGE_BYTES
from harp.nearest import did_you_mean
from harp.reading import FileError, Node, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 1 << 50
MOST_SCALE = 2.0 ** 127
"""Of a loss: the largest power of two that a float32 holds."""
MOST_STALE = 64
"""Steps; a training that lacks more gradients is not the one that was asked for."""

OFFLOAD = ("device", "nvme_path", "pin_memory", "buffer_count", "buffer_size", "fast_init",
           "max_in_cpu", "pipeline_read", "pipeline_write", "ratio")
KEYS: dict[str, tuple[str, ...]] = {
    "": ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
         "gradient_clipping", "optimizer", "fp16", "bf16", "zero_optimization", "aio", "angelptm",
         "steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer",
         "zero_force_ds_cpu_optimizer"),
    "optimizer": ("type", "params"),
    "optimizer.params": ("lr", "betas", "eps", "weight_decay", "adam_w_mode", "torch_adam"),
    "fp16": ("enabled", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis",
             "min_loss_scale"),
    "bf16": ("enabled",),
    "zero_optimization": (
        "stage", "offload_param", "offload_optimizer", "overlap_comm", "contiguous_gradients",
        "reduce_bucket_size", "allgather_bucket_size", "allgather_partitions", "reduce_scatter",
        "sub_group_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
        "stage3_max_live_parameters", "stage3_max_reuse_distance", "round_robin_gradients",
        "stage3_gather_16bit_weights_on_model_save", "ignore_unused_parameters"),
    "zero_optimization.offload_param": OFFLOAD,
    "zero_optimization.offload_optimizer": OFFLOAD,
    "aio": ("block_size", "queue_depth", "thread_count", "intra_op_parallelism", "single_submit",
            "overlap_events", "use_gds"),
    "angelptm": ("device_bytes", "host_bytes", "disk_bytes", "disk_path", "page_bytes", "io",
                 "update", "staleness", "device"),
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
    stage = 0
    config = Config(**_batch(root, ranks), **_memory(root))
    if (node := root.get("gradient_clipping")) is not None:
        config = replace(config, clipping=node.number(0.0))
    if (node := root.get("optimizer")) is not None:
        config = replace(config, adam=_adam(node))
    if (zero := root.get("zero_optimization")) is not None and (node := zero.get("stage")):
        stage = node.whole(0, 3)
    config = replace(config, stage=stage)
    if _is_on(root.get("bf16")):
        config = replace(config, precision="bfloat16")
    if _is_on(half := root.get("fp16")):
        if config.precision != "float32":
            raise FileError("fp16.enabled and bf16.enabled are both true: one is possible")
        assert half is not None
        config = replace(config, precision="float16", scaling=_scaling(half))
    _check_staleness(root, config)
    return config


def _check_staleness(root: Node, config: Config) -> None:
    own = root.get("angelptm")
    node = own.get("staleness") if own is not None else None
    if node is not None and config.update != "async":
        raise FileError("angelptm.staleness is of late updates: angelptm.update async has them")
    if node is not None and config.staleness > 1 and (config.clipping or config.scaling):
        # Gradients of several steps are one sum, and each of these steps has a scale of its own.
        node.fail("with gradient_clipping or fp16 only 1")


def _check_keys(node: Node, where: str) -> None:
    allowed = KEYS[where]
    for key, value in node.items():
        path = f"{where}.{key}" if where else key
        if key not in allowed:
            _refuse(path, key, allowed)
        if path in KEYS and not value.is_none():
            _check_keys(value, path)


def _refuse(path: str, key: str, allowed: tuple[str, ...]) -> NoReturn:
    more = did_you_mean(key, allowed) or f"; keys there are {', '.join(allowed)}"
    raise FileError(f"{path} is no key that AngelPTM knows{more}")


def _is_on(node: Node | None) -> bool:
    flag = node.get("enabled") if node is not None else None
    return flag is not None and flag.flag()


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
    decoupled = kind == "AdamW"
    if (mode := params.get("adam_w_mode")) is not None:
        decoupled = mode.flag()
    elif kind == "Adam":
        decoupled = True  # as DeepSpeed has it: adam_w_mode is true unless it is said otherwise
    betas = params.get("betas")
    pair = [beta.number(0.0, 1.0) for beta in betas.each()] if betas is not None else [0.9, 0.999]
    if betas is not None and (len(pair) != 2 or 1.0 in pair):
        betas.fail("two numbers below 1")

    def number(name: str, usual: float) -> float:
        value = params.get(name)
        return value.number(0.0) if value is not None else usual

    return Adam(number("lr", 1e-3), (pair[0], pair[1]), number("eps", 1e-8),
                number("weight_decay", 0.01 if kind == "AdamW" else 0.0), decoupled)


def _scaling(node: Node) -> Scaling:
    usual = Scaling()

    def number(name: str, usual: float, most: float) -> float:
        value = node.get(name)
        return value.number(0.0, most) if value is not None else usual

    def steps(name: str, usual: int) -> int:
        value = node.get(name)
        return value.whole(1, MOST) if value is not None else usual

    fixed = number("loss_scale", 0.0, MOST_SCALE)
    return Scaling(fixed or 2.0 ** number("initial_scale_power", 16, math.log2(MOST_SCALE)),
                   steps("loss_scale_window", usual.window), steps("hysteresis", usual.hysteresis),
                   number("min_loss_scale", usual.least, MOST_SCALE), bool(fixed))


def _memory(root: Node) -> dict[str, Any]:
    found: dict[str, Any] = {}
    zero = root.get("zero_optimization")
    for name in ("offload_param", "offload_optimizer"):
        offload = zero.get(name) if zero is not None else None
        if offload is None or offload.is_none():
            continue
        device = offload.get("device")
        if device is not None and device.one_of("none", "cpu", "nvme") == "nvme":
            found["disk_path"] = offload["nvme_path"].text()
    own = root.get("angelptm")
    return found | (_own_memory(own) if own is not None else {})


def _own_memory(own: Node) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: node.whole(0, MOST) for name in ("device_bytes", "host_bytes", "disk_bytes")
        if (node := own.get(name)) is not None}
    if (node := own.get("disk_path")) is not None:
        found["disk_path"] = node.text()
    if (node := own.get("io")) is not None:
        found["io"] = node.one_of("auto", "io_uring", "threads")
    if (node := own.get("update")) is not None:
        found["update"] = node.one_of("sync", "async")
    if (node := own.get("staleness")) is not None:
        found["staleness"] = node.whole(1, MOST_STALE)
    if (node := own.get("device")) is not None:
        found["device"] = node.one_of("accelerator", "cpu")
    if (node := own.get("page_bytes")) is not None:
        found["page_bytes"] = node.whole(8192, 1 << 30)
        if found["page_bytes"] % 8192:
            node.fail("a multiple of 8192")
    return found
