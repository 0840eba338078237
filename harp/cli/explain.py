"""``harp env --explain``: print the settings in force, their origin and their effect.

The algorithms are those of `harp.lightcc.policy`, which real groups and the simulator use too.
"""

from __future__ import annotations

import os
import re
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from harp.cli import conf
from harp.lightcc.fusion import DDP_BYTES, DDP_FIRST_BYTES, fill
from harp.lightcc.horovod.horovod_settings import NAMES as HOROVOD_NAMES
from harp.lightcc.policy import allreduce_path, tuning_of
from harp.lightcc.settings import NAMES, WHOLE_BITS, Choice, LightSettings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from harp.lightcc.policy import PlanPath

SIZES = (1 << 10, 64 << 10, 1 << 20, 25 << 20)
"""Bytes of a bias, a small layer, and DDP's first and other buckets."""
OF_LAUNCHERS = tuple(f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE",
                                                   "CROSS_RANK", "CROSS_SIZE"))
"""Variables of a rank that a launcher sets; they are not settings."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_sizes(_context: click.Context, _option: click.Parameter,
               texts: Sequence[str]) -> tuple[int, ...]:
    """Parse sizes like ``4096``, ``64K``, ``25M`` or ``1G``."""
    sizes = []
    for text in texts:
        found = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
        if not found:
            raise click.BadParameter(f"{text!r} is not a size; give bytes, like 4096, 64K, 25M or "
                                     "1G")
        sizes.append(int(found[1]) * _UNITS[found[2]])
    return tuple(sizes)


def read_size(context: click.Context, option: click.Parameter, text: str) -> int:
    """Read one size."""
    return read_sizes(context, option, (text,))[0]


def explanation(ranks: int, hosts: int, sizes: Sequence[int], gradients: Sequence[int] = (),
                bucket_bytes: int = DDP_BYTES) -> Iterator[str]:
    """Give the lines to print; ClickException for invalid settings.

    ``gradients`` are the sizes of DDP's parameters in the order of the backward pass.
    """
    conf.check_settings(os.environ, here=True)
    light, tuning = LightSettings.from_env(os.environ), tuning_of(os.environ)
    here = conf.settings()
    conf.check_files(here)
    yield "LightCC's settings:"
    for name in NAMES:
        source = "environment" if name in os.environ else "default"
        yield f"  {name}={light.value(name)}  ({source})"
    yield "HARP's settings:"
    yield from _harp(here)
    yield "Settings of Horovod's API:"
    yield from _horovod()
    yield f"An average of float32 over {ranks} ranks on {_counted(hosts, 'host')}:"
    for nbytes in sizes or (() if gradients else SIZES):
        path = allreduce_path(light, ranks, nbytes, tuning=tuning, hosts=hosts)
        yield f"  {nbytes} B: {path.plan}{_details(path, nbytes // 4)}: {path.why}"
    starts = [*fill(gradients, min(DDP_FIRST_BYTES, bucket_bytes), bucket_bytes), len(gradients)]
    for number, (first, end) in enumerate(pairwise(starts)):
        nbytes = sum(gradients[first:end])
        path = allreduce_path(light, ranks, nbytes, tuning=tuning, hosts=hosts)
        held = f"gradient {first}" if end == first + 1 else f"gradients {first} to {end - 1}"
        yield (f"  DDP's bucket {number}, {held}, {nbytes} B: {path.plan}"
               f"{_details(path, nbytes // 4)}: {path.why}")
    if light.bits < WHOLE_BITS:
        yield ("Few bits are for gradients: harp.lightcc.hook and hvd.DistributedOptimizer; a "
               "plain all_reduce is whole.")
    if light.topk:
        yield ("Top-k is for gradients: harp.lightcc.hook and hvd.DistributedOptimizer; a plain "
               "all_reduce is dense.")


def _harp(here: Mapping[str, str]) -> Iterator[str]:
    for name in conf.NAMES:
        if name in here:
            yield f"  {name}={here[name]}  ({_source(name)})"
    yield _rest("HARP_ settings of LightCC and NCCL's plugin", {*conf.LIGHTCC} - {*here})
    yield _rest("HARP_ settings of NCCL's plugin alone", {*conf.NAMES} - {*conf.LIGHTCC, *here})


def _source(name: str) -> str:
    """Say where a value comes from and what reads it."""
    if not os.environ.get(name):
        return f"{conf.path()}, which NCCL's plugin reads; LightCC reads the environment"
    if name not in conf.LIGHTCC:
        return "environment; only NCCL's plugin reads it"
    return "environment"


def _horovod() -> Iterator[str]:
    given = [name for name in os.environ
             if name.startswith("HOROVOD_") and name not in OF_LAUNCHERS]
    for name in sorted(given):
        source = "environment" if name in HOROVOD_NAMES else "environment; has no effect here"
        yield f"  {name}={os.environ[name]}  ({source})"
    yield _rest("HOROVOD_ settings", {*HOROVOD_NAMES} - {*given})


def _rest(what: str, names: Collection[str]) -> str:
    return f"  the other {what}: default  ({', '.join(sorted(names))})"


def _details(path: PlanPath, elements: int) -> str:
    parts = []
    group = path.parameters.get("group", 1)
    if "group" in path.parameters:
        parts.append(f"groups of {group}")
    if "ratio" in path.parameters:
        examined = elements // group
        kept = Choice("sparse-flat", ratio=Fraction(repr(path.parameters["ratio"]))).selected(
            examined)
        parts.append(f"a rank sends {kept} of {examined} values, "
                    f"{path.parameters['value_bytes']} B each")
    if "bits" in path.parameters:
        parts.append(f"{path.parameters['bits']} bits a value" + " between them" * bool(parts))
    return f" ({', '.join(parts)})" if parts else ""


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count > 1 else "")
