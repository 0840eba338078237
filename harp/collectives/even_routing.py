"""Blocks of a router that uses all experts alike: what a simulator knows without counts.

A token has ``top_k`` different experts, drawn evenly, and experts lie evenly on ranks. So the share
of tokens that want none of n ranks is that of draws without the experts of these, and inclusion and
exclusion give the share that wants exactly the others of a host:

    none(n) = product over i < k of 1 - n·e / (E - i)         E experts, e of them on a rank
    exactly m of g ranks = C(g, m) · sum over j of (-1)^j C(m, j) none(g - m + j)

The tokens that want m ranks of a host are in g blocks, of m neighbours each, or in one for all g.

>>> copies(64, 8, (0, 0, 1, 1))  # that cross: one an expert, one a rank, one a host
(4.0, 1.83, 0.998)
"""

from __future__ import annotations

from math import comb, prod
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.blocks import Blocks

if TYPE_CHECKING:
    from collections.abc import Sequence


def wanted_shares(experts: int, top_k: int, ranks: int, of_host: int) -> list[float]:
    """Return the share of tokens that want exactly m ranks of a host, for m from 0."""
    each = experts / ranks

    def none(some: int) -> float:
        return prod(max(0.0, 1 - some * each / (experts - i)) for i in range(top_k))
    return [comb(of_host, m) * sum((-1) ** j * comb(m, j) * none(of_host - m + j)
                                   for j in range(m + 1)) for m in range(of_host + 1)]


def even_blocks(token_bytes: int, experts: int, top_k: int, hosts: Sequence[int],
                unit_bytes: int = 1) -> Blocks:
    """Make the blocks of ranks that have ``token_bytes`` each, in whole units."""
    host, ranks = np.asarray(hosts), len(hosts)
    sets, shares = [], []
    for number in np.unique(host):
        members = np.flatnonzero(host == number)
        size = len(members)
        for m, share in enumerate(wanted_shares(experts, top_k, ranks, size)):
            for first in range(size if 0 < m < size else min(m, 1)):
                chosen = np.zeros(ranks, bool)
                chosen[members[(first + np.arange(m)) % size]] = True
                sets.append(chosen)
                shares.append(share / (size if m < size else 1))
    nbytes = np.rint(np.array(shares) * (token_bytes / unit_bytes)).astype(np.int64) * unit_bytes
    return Blocks(np.repeat(np.arange(ranks), len(sets)), np.tile(np.array(sets), (ranks, 1)),
                  np.tile(np.maximum(nbytes, 0), ranks))


def copies(experts: int, top_k: int, hosts: Sequence[int]) -> tuple[float, float, float]:
    """Return how often a token of rank 0 crosses with a copy an expert, a rank, and a host."""
    host, ranks = np.asarray(hosts), len(hosts)
    away = [int((host == number).sum()) for number in np.unique(host) if number != host[0]]
    shares = [wanted_shares(experts, top_k, ranks, size) for size in away]
    return (top_k * sum(away) / ranks,
            round(sum(m * share for row in shares for m, share in enumerate(row)), 2),
            round(sum(1 - row[0] for row in shares), 3))
