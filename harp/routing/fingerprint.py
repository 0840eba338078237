"""Groups of source ports that share a path, by delays alone, where no router answers.

Packets that wait in one queue wait at the same times. So delays of ports that share a path rise and
fall together, and those of others do not (Rubenstein, Kurose and Towsley, "Detecting Shared
Congestion of Flows Via End-to-end Measurement", SIGMETRICS 2000). The delay that all ports have in
common (the queue of the sender's own NIC, the drift of two clocks, a receiver without CPU time) is
removed by subtracting the least delay of each round. Paths of different length have a constant
difference, which carries no information.

Ports are joined by average linkage, the two most similar groups first, as long as their mean
correlation is more than chance (in standard deviations of independent delays) and more than half of
the correlation within each: if a job sends and pauses, all its queues fill at once and all ports
are slightly correlated. A port that resembles no other has no class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

PAIR_DEVIATIONS, GROUP_DEVIATIONS = 5.0, 3.0
"""Thresholds: for two of hundreds of pairs of ports; for a port and a group, which is a mean."""
COHERENT = 0.5
"""Least share of the mean correlation within a group that a new member needs."""
LEAST_ROUNDS = 50
LEAST_HEARD = 0.5
"""Share of the rounds that a port needs to be judged."""


class Classes(NamedTuple):
    """Classes of ports."""

    label: NDArray[np.int64]
    """Class of each port; -1: like no other, or too few answers."""
    sure: float
    """Mean silhouette (Rousseeuw 1987), 1 at best: the part of a port's similarity to its own class
    that exceeds its similarity to the next one."""


def find_classes(delays_s: ArrayLike) -> Classes:
    """Group ports by their delays, shape (rounds, ports), nan where a packet was lost."""
    delays = np.array(delays_s, np.float64)
    rounds, ports = delays.shape
    label = np.full(ports, -1)
    heard = np.flatnonzero((~np.isnan(delays)).sum(axis=0) >= max(1, LEAST_HEARD * rounds))
    if rounds < LEAST_ROUNDS or len(heard) < 2:
        return Classes(label, 0.0)
    alike = _correlations(delays[:, heard])
    groups = _join(alike, 1 / np.sqrt(rounds))
    sure = []
    for number, group in enumerate(groups):
        label[heard[group]] = number
        others = [alike[np.ix_(group, other)].mean(axis=1) for other in groups if other != group]
        own = (alike[np.ix_(group, group)].sum(axis=1) - 1) / (len(group) - 1)
        sure.extend(1 - np.max([*others, 0 * own], axis=0) / np.maximum(own, 1e-9))
    return Classes(label, float(np.clip(np.mean(sure), 0, 1)) if sure else 0.0)


def _correlations(delays: Floats) -> Floats:
    """Spearman's coefficient between ports, of the delays that remain in each round.

    It goes by ranks, so the lateness of a single packet does not dominate. A lost packet carries
    no information: it gets the middle rank.
    """
    own = delays - np.fmin.reduce(delays, axis=1, keepdims=True)
    rank = np.zeros_like(own)
    for port, column in enumerate(own.T):
        came = np.flatnonzero(~np.isnan(column))
        order = came[np.argsort(column[came], kind="stable")]
        rank[order, port] = np.arange(len(order)) - (len(order) - 1) / 2
    norm = np.sqrt((rank ** 2).sum(axis=0))
    norm[norm == 0] = 1
    rank /= norm
    found: Floats = rank.T @ rank
    return found


def _join(alike: Floats, deviation: float) -> list[list[int]]:
    """Groups of two ports at least that are alike in the mean."""
    groups = [[port] for port in range(len(alike))]
    mean = alike.copy()
    np.fill_diagonal(mean, -np.inf)
    while len(groups) > 1:
        alone = np.array([len(group) == 1 for group in groups])
        least = np.where(alone[:, None] & alone, PAIR_DEVIATIONS, GROUP_DEVIATIONS) * deviation
        within = np.array([_mean_within(alike, group) for group in groups])
        least = np.maximum(least, COHERENT * np.maximum.outer(within, within))
        joins = np.where(mean > least, mean, -np.inf)
        if np.isneginf(joins).all():
            break
        one, other = sorted(divmod(int(joins.argmax()), len(groups)))
        sizes = len(groups[one]), len(groups[other])
        both = (sizes[0] * mean[one] + sizes[1] * mean[other]) / sum(sizes)
        mean[one], mean[:, one] = both, both
        mean[one, one] = -np.inf
        mean = np.delete(np.delete(mean, other, axis=0), other, axis=1)
        groups[one] += groups.pop(other)
    return [sorted(group) for group in groups if len(group) > 1]


def _mean_within(alike: Floats, group: list[int]) -> float:
    """Between the ports of a group; 0 for one alone."""
    count = len(group)
    return float((alike[np.ix_(group, group)].sum() - count) / max(1, count * (count - 1)))
