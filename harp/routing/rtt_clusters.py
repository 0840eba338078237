"""Clusters of hosts by their round trips, for networks with an unknown topology.

Hosts are joined by average linkage (Sokal and Michener 1958): the two groups with the least mean
distance become one, repeatedly. Under one ToR, then under one pod, joins cost about the same; a
level of the network ends where a join costs much more than the one before. "Much more" is
`LEAST_STEP`, and several times the difference between the two directions of a pair, which measures
the noise.

`harp probe --latency` writes a file for each host, ``harp-latency-1``; `matrix` puts them together.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.reading import FileError, check_format, parse
from harp.routing.path_plan import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

FORMAT = "harp-latency-1"
LEAST_STEP = 1.15
"""Ratio of costs between levels: two more switches in each direction."""
NOISE_STEP = 3.0
"""Least step, in medians of the difference between two directions."""
MOST_LEVELS = 2
"""ToRs and pods."""


class RttClusters(NamedTuple):
    """The clusters of some hosts."""

    place: Ints
    """Shape (hosts, levels): group of each, coarse to fine; no level where all are alike."""
    sure: float
    """Mean silhouette (Rousseeuw 1987) of the finest groups, 1 at best; 0 where there are none."""


def to_json(source: str, round_trips_s: Mapping[str, float]) -> str:
    """Write the round trips from one host."""
    return json.dumps({"format": FORMAT, "source": source, "round_trip_us": {
        target: round(taken * 1e6, 3) for target, taken in round_trips_s.items()}}) + "\n"


def from_json(text: str) -> tuple[str, dict[str, float]]:
    """Read it; raises PlanError, one sentence, for anything else."""
    try:
        data = parse(text)
        check_format(data, FORMAT, "make it again with harp probe --latency")
        taken = {target: us.number(1e-3, 6e7) / 1e6 for target, us in data["round_trip_us"].items()}
        return data["source"].text(), taken
    except FileError as error:
        raise PlanError(f"it is not a file of harp probe --latency: {error}") from error


def matrix(hosts: Sequence[Sequence[str]],
           measured: Iterable[tuple[str, Mapping[str, float]]]) -> Floats:
    """Round trips between hosts, each given by its addresses; nan: not measured."""
    number = {address: at for at, addresses in enumerate(hosts) for address in addresses}
    found = np.full((len(hosts), len(hosts)), np.nan)
    for source, taken in measured:
        for target, taken_s in taken.items():
            if source in number and target in number:
                pair = number[source], number[target]
                found[pair] = np.fmin(found[pair], taken_s)
    return found


def cluster_hosts(round_trip_s: Floats) -> RttClusters:
    """Group hosts by their round trips, shape (hosts, hosts), nan where not measured.

    Raises PlanError where two hosts were measured in neither direction.
    """
    hosts = len(round_trip_s)
    pair = np.fmin(round_trip_s, round_trip_s.T)
    np.fill_diagonal(pair, 0.0)
    if np.isnan(pair).any():
        first, second = np.argwhere(np.isnan(pair))[0].tolist()
        raise PlanError(f"hosts {first} and {second} were measured in neither direction")
    differ = np.abs(round_trip_s - round_trip_s.T)[np.triu_indices(hosts, 1)]
    noise = float(np.median(differ[~np.isnan(differ)])) if (~np.isnan(differ)).any() else 0.0
    costs, merged = _join(pair)
    place = np.array([_labels(hosts, merged[:cut]) for cut in _steps(costs, noise)],
                     np.int64).reshape(-1, hosts).T
    return RttClusters(place, _silhouette(pair, place[:, -1]) if place.shape[1] else 0.0)


def _join(pair: Floats) -> tuple[Floats, list[tuple[int, int]]]:
    """Join groups until one is left; give each join's cost and the first hosts of its groups."""
    far = pair.copy()
    np.fill_diagonal(far, np.inf)
    size = np.ones(len(pair))
    costs, merged = [], []
    for _ in range(len(pair) - 1):
        one, other = sorted(divmod(int(far.argmin()), len(far)))
        costs.append(far[one, other])
        merged.append((one, other))
        mean = (size[one] * far[one] + size[other] * far[other]) / (size[one] + size[other])
        far[one], far[:, one] = mean, mean
        far[one, one] = np.inf
        far[other], far[:, other] = np.inf, np.inf
        size[one] += size[other]
    return np.array(costs), merged


def _steps(costs: Floats, noise: float) -> list[int]:
    """After how many joins a level ends, coarse to fine."""
    before, after = costs[:-1], costs[1:]
    step = np.divide(after, before, out=np.ones(len(after)), where=before > 0)
    ends = np.flatnonzero((step >= LEAST_STEP) & (after - before >= NOISE_STEP * noise))
    largest = ends[np.argsort(-step[ends], kind="stable")][:MOST_LEVELS]
    return sorted((int(end) + 1 for end in largest), reverse=True)


def _labels(hosts: int, merged: Sequence[tuple[int, int]]) -> Ints:
    label = np.arange(hosts)
    for one, other in merged:
        label[label == label[other]] = label[one]
    return label


def _silhouette(pair: Floats, label: Ints) -> float:
    groups = np.unique(label)
    if len(groups) < 2:
        return 0.0
    member = label == groups[:, None]
    total = member.astype(float) @ pair
    count = member.sum(axis=1)[:, None]
    own = member.argmax(axis=0)
    hosts = np.arange(len(label))
    others = (total / count)
    others[own, hosts] = np.inf
    near = total[own, hosts] / np.maximum(count[own, 0] - 1, 1)
    far = others.min(axis=0)
    alone = count[own, 0] == 1
    score = np.where(alone, 0.0, (far - near) / np.maximum(np.maximum(far, near), 1e-12))
    return float(score.mean())
