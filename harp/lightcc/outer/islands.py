"""Islands: the group in which a rank trains in step, and that between islands."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

import harp.lightcc.torch  # noqa: F401  (registers the backend)
from harp.lightcc.failure import name_ranks
from harp.lightcc.launch import read_place

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta


@dataclass(frozen=True)
class Islands:
    """The groups of one rank."""

    between: dist.ProcessGroup | None = None
    """This rank and those that stand for the same part of other islands; None: all ranks."""
    within: dist.ProcessGroup | None = None
    """The ranks of its island, which divide what is sent to other islands; None: it is alone, or
    each rank has a part of the parameters already (FSDP2)."""


def make_islands(size: int | None = None, *, within: str | None = None, between: str = "lightcc",
                 timeout: timedelta | None = None) -> Islands:
    """Make islands of ``size`` consecutive ranks; all ranks call it, after `init_process_group`.

    Args:
        size: ranks of an island; those of a host, as the launcher says, if not given.
        within: backend within an island; the default group's if not given.
        between: backend between islands.
        timeout: of both groups' calls.

    Raises:
        ValueError: where ranks cannot be divided so.

    """
    ranks = dist.get_world_size()
    size = size or read_place(os.environ).local_size
    if size is None:
        raise ValueError("make_islands needs the number of ranks of an island: the launcher does "
                         "not say how many a host has")
    if size < 1 or ranks % size:
        raise ValueError(f"{ranks} ranks cannot be divided into islands of {size}")
    inner = [dist.new_group(list(range(first, first + size)), backend=within, timeout=timeout)
             for first in range(0, ranks, size)]
    outer = [dist.new_group(list(range(place, ranks, size)), backend=between, timeout=timeout)
             for place in range(size)]
    return Islands(outer[dist.get_rank() % size], inner[dist.get_rank() // size])


def check_alike(described: Mapping[str, object], between: dist.ProcessGroup | None) -> None:
    """Raise ValueError, at all ranks, where islands have made a method with other settings.

    Messages of one size may mean other things, so nothing else would find that out.
    """
    said: list[Any] = [None] * dist.get_world_size(between)
    dist.all_gather_object(said, dict(described), group=between)
    differ = []
    for name in described:
        holders: dict[Any, list[int]] = {}
        for rank, one in enumerate(said):
            holders.setdefault(one.get(name), []).append(rank)
        if len(holders) > 1:
            differ.append(f"{name} is " + ", ".join(f"{value!r} at {name_ranks(ranks)}"
                                                    for value, ranks in holders.items()))
    if differ:
        raise ValueError(f"islands do not agree: {'; '.join(differ)}")
