"""Islands: the group in which a rank trains in step, and that between islands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

import harp.lightcc.torch  # noqa: F401  (registers the backend)
from harp.lightcc.failure import name_ranks
from harp.lightcc.peers import memory_place

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
    """Make an island of each host; all ranks call it, after `init_process_group`.

    Args:
        size: consecutive ranks of an island, instead of those of a host.
        within: backend within an island; the default group's if not given.
        between: backend between islands.
        timeout: of both groups' calls.

    Raises:
        ValueError: where ranks cannot be divided so.

    """
    islands = _ranks_of_hosts() if size is None else _consecutive_ranks(size)
    inner = [dist.new_group(ranks, backend=within, timeout=timeout) for ranks in islands]
    outer = [dist.new_group(list(ranks), backend=between, timeout=timeout)
             for ranks in zip(*islands, strict=True)]
    rank = dist.get_rank()
    return next(Islands(outer[ranks.index(rank)], group)
                for ranks, group in zip(islands, inner, strict=True) if rank in ranks)


def _ranks_of_hosts() -> list[list[int]]:
    """Give the ranks of each host, which a launcher may number in any order."""
    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, memory_place())
    found: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    islands = list(found.values())
    odd = next((ranks for ranks in islands if len(ranks) != len(islands[0])), None)
    if odd is not None:
        raise ValueError("islands have as many ranks each: on one host are "
                         f"{name_ranks(islands[0])}, on another one {name_ranks(odd)}")
    return islands


def _consecutive_ranks(size: int) -> list[list[int]]:
    ranks = dist.get_world_size()
    if size < 1 or ranks % size:
        raise ValueError(f"{ranks} ranks cannot be divided into islands of {size}")
    return [list(range(first, first + size)) for first in range(0, ranks, size)]


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
