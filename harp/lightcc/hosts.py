"""Which ranks share a host, and with which of other hosts a rank shares a part of a bucket.

>>> find_hosts(["a", "a", "b", "b"], 2)
Hosts(mine=(2, 3), across=(0, 2))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Hosts(NamedTuple):
    """Those that a rank works with."""

    mine: tuple[int, ...]
    """The ranks of its host."""
    across: tuple[int, ...]
    """Of each host the one with its place there: they have the same part of a bucket."""


def find_hosts(names: Sequence[str], rank: int) -> Hosts:
    """Find them by the names of all ranks' hosts.

    Raises:
        ValueError: the same at all ranks, where hosts have different numbers of ranks.

    """
    hosts: dict[str, list[int]] = {}
    for other, name in enumerate(names):
        hosts.setdefault(name, []).append(other)
    if len({len(ranks) for ranks in hosts.values()}) > 1:
        counts = ", ".join(str(len(ranks)) for ranks in hosts.values())
        raise ValueError(f"the hosts have {counts} ranks; a bucket is divided among the ranks of a "
                         "host, so all must have as many (or DDP a group of the backend lightcc, "
                         "which takes any)")
    mine = hosts[names[rank]]
    place = mine.index(rank)
    return Hosts(tuple(mine), tuple(ranks[place] for ranks in hosts.values()))
