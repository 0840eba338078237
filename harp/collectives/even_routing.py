"""Blocks of a router that uses all experts alike: what a simulator knows without counts.

A token has ``top_k`` different experts, drawn evenly, and experts lie evenly on ranks. So the share
of tokens that want none of n ranks is that of draws without the experts of these, and inclusion and
exclusion give the share that wants exactly the others of a host:

    none(n) = product over i < k of 1 - n·e / (E - i)         E experts, e of them on a rank
    exactly m of g ranks = C(g, m) · sum over j of (-1)^j C(m, j) none(g - m + j)

The tokens that want m ranks of a host are in g blocks, of m neighbours each, or in one for all g.

A router may limit a token to T of G groups of neighbouring experts, so that it goes to few hosts
(DeepSeek-V3's report, arXiv 2412.19437, section 2.1.2). Groups are drawn evenly as well, and then
experts of those that were drawn. Where a rank has whole groups, none(n) is the mean over the
numbers of its groups that are drawn, which are hypergeometric. Where a group has several ranks, it
has whole hosts, or a host has whole groups: of these h are drawn with a probability that is
hypergeometric, neighbours again, and their ranks are wanted as those of fewer experts.

>>> copies(Router(64, 8), (0, 0, 1, 1))  # that cross: one an expert, one a rank, one a host
(4.0, 1.83, 0.998)
>>> copies(Router(64, 8, groups=2), (0, 0, 1, 1))  # each token stays with one host's experts
(4.0, 1.0, 0.5)
"""

from __future__ import annotations

from math import comb, prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.collectives.blocks import Blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Router(NamedTuple):
    """Experts of a layer, and those of a token: ``top_k`` out of ``top_groups`` groups."""

    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1

    def lies_evenly(self, ranks: int, of_host: int) -> bool:
        """Whether groups are whole on ``ranks`` ranks, ``of_host`` of them on each host."""
        width, rest = divmod(ranks, self.groups)
        if not width:
            return self.groups % ranks == 0
        return not rest and (width % of_host == 0 or of_host % width == 0)


def _drawn(many: int, drawn: int, own: int, hits: int) -> float:
    """Probability that ``hits`` of ``own`` are among the ``drawn`` of ``many``."""
    return comb(own, hits) * comb(many - own, drawn - hits) / comb(many, drawn)


def wanted_shares(router: Router, ranks: int, of_host: int) -> list[float]:
    """Return the share of tokens that want exactly m ranks of a host, for m from 0.

    A rank has whole groups here, or there is one group.
    """
    experts, top_k, groups, drawn = router
    each = groups // ranks if groups > 1 else 0  # groups of a rank
    open_to = experts * drawn // groups

    def missed(of_them: float) -> float:
        return prod(max(0.0, 1 - of_them / (open_to - i)) for i in range(top_k))

    def none(some: int) -> float:
        if not each:
            return missed(some * experts / ranks)
        return sum(_drawn(groups, drawn, some * each, hits) * missed(hits * experts / groups)
                   for hits in range(min(some * each, drawn) + 1)
                   if drawn - hits <= groups - some * each)
    return [comb(of_host, m) * sum((-1) ** j * comb(m, j) * none(of_host - m + j)
                                   for j in range(m + 1)) for m in range(of_host + 1)]


def _choices(router: Router, ranks: int, of_host: int) -> Iterator[tuple[list[int], float]]:
    """Ranks of a host that a token may want, and the share of tokens that want just these."""
    if router.groups == 1 or router.groups >= ranks:
        yield from _neighbours(list(range(of_host)), wanted_shares(router, ranks, of_host), 1.0)
        return
    experts, top_k, groups, drawn = router
    width = min(ranks // groups, of_host)
    parts = of_host // width
    yield [], _drawn(groups, drawn, parts, 0)
    for hits in range(1, min(parts, drawn) + 1):
        share = _drawn(groups, drawn, parts, hits)
        inner = wanted_shares(Router(experts * drawn // groups, top_k), ranks * drawn // groups,
                              hits * width)
        rows = _rows(parts, hits)
        for row in rows:
            some = [part * width + rank for part in row for rank in range(width)]
            yield from _neighbours(some, inner, share / len(rows))


def _rows(size: int, length: int) -> list[list[int]]:
    """Rows of ``length`` neighbours on a ring of ``size``; a whole or an empty one once."""
    return [[(first + number) % size for number in range(length)]
            for first in range(size if 0 < length < size else 1)]


def _neighbours(some: list[int], shares: list[float],
                weight: float) -> Iterator[tuple[list[int], float]]:
    """Each row of m neighbours among ``some`` ranks; those that want m are spread over them."""
    for m, share in enumerate(shares):
        rows = _rows(len(some), m)
        for row in rows:
            yield [some[place] for place in row], weight * share / len(rows)


def even_blocks(token_bytes: int, router: Router, hosts: Sequence[int],
                unit_bytes: int = 1) -> Blocks:
    """Make the blocks of ranks that have ``token_bytes`` each, in whole units.

    Raises:
        ValueError: the router's groups are not whole on ranks and hosts.

    """
    host, ranks = np.asarray(hosts), len(hosts)
    sets, shares = [], []
    for number in np.unique(host):
        members = np.flatnonzero(host == number)
        _check(router, ranks, len(members))
        for wanted, share in _choices(router, ranks, len(members)):
            if wanted:
                chosen = np.zeros(ranks, bool)
                chosen[members[wanted]] = True
                sets.append(chosen)
                shares.append(share)
    nbytes = np.rint(np.array(shares) * (token_bytes / unit_bytes)).astype(np.int64) * unit_bytes
    return Blocks(np.repeat(np.arange(ranks), len(sets)), np.tile(np.array(sets), (ranks, 1)),
                  np.tile(np.maximum(nbytes, 0), ranks))


def _check(router: Router, ranks: int, of_host: int) -> None:
    if router.groups > 1 and not router.lies_evenly(ranks, of_host):
        raise ValueError(f"{router.groups} groups of experts are not whole on {ranks} ranks, "
                         f"{of_host} a host")


def copies(router: Router, hosts: Sequence[int]) -> tuple[float, float, float]:
    """Return how often a token of rank 0 crosses with a copy an expert, a rank, and a host."""
    host, ranks = np.asarray(hosts), len(hosts)
    away = [int((host == number).sum()) for number in np.unique(host) if number != host[0]]
    some = [choice for size in away for choice in _choices(router, ranks, size)]
    return (router.top_k * sum(away) / ranks,
            round(sum(len(wanted) * share for wanted, share in some), 2),
            round(sum(share for wanted, share in some if wanted), 3))
