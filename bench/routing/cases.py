"""Fabrics, jobs and plans of the rows of routes.

Fabrics are non-blocking leaf-spines and fat trees, all links 100 Gb/s. The permutation is one job
whose hosts each send to another one; the rings are four jobs whose ranks lie scattered over all
hosts, each rank sending to the next.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.routing.background_load import Background
from harp.routing.jobs import Job, Ranks, Wanted, plan_job, plan_jobs
from harp.routing.source_ports import DYNAMIC_PORTS
from harp.routing.templates import Endpoints, fat_tree, leaf_spine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from harp.routing.deployment import Deployment
    from harp.routing.fabric import Fabric, Flows

    Ints = NDArray[np.int64]

RING_JOBS = 4
TRAFFICS = {"permutation": 1, "rings": RING_JOBS}
"""Traffics, by their number of jobs."""
ECMP_DRAWS = 10
LEAVES = {64: 8, 256: 16, 1024: 32}
FAT_TREE_K = {64: 8, 256: 12, 1024: 16}


class Case(NamedTuple):
    """Jobs on a fabric."""

    name: str
    fabric: Fabric
    jobs: list[Job]

    @property
    def ends(self) -> tuple[Ints, Ints]:
        """Endpoints of all flows."""
        pairs = np.concatenate([job.ranks.endpoint[np.array(job.wanted.pairs)]
                                for job in self.jobs])
        return pairs[:, 0], pairs[:, 1]


def cases(hosts: int, rng: np.random.Generator) -> Iterator[Case]:
    """All fabrics and traffics of a size."""
    endpoints, leaves = Endpoints.uniform(hosts), LEAVES[hosts]
    for kind, fabric in (("leaf-spine", leaf_spine(endpoints, leaves=leaves,
                                                   spines=hosts // leaves)),
                         ("three-tier", fat_tree(endpoints, k=FAT_TREE_K[hosts]))):
        for traffic, count in TRAFFICS.items():
            # A permutation of one cycle: nobody sends to itself.
            rings = np.array_split(rng.permutation(hosts), count)
            yield Case(f"{kind}-{hosts}-{traffic}", fabric,
                       [make_ring(fabric, ring) for ring in rings])


def make_ring(fabric: Fabric, hosts: Ints) -> Job:
    """A job in which each host sends to the next."""
    one = np.ones(hosts.size, np.int64)
    names = tuple(name.partition("/")[0] for name in fabric.endpoints)
    return Job(Ranks(hosts, hosts, one, names),
               Wanted([(rank, (rank + 1) % hosts.size) for rank in range(hosts.size)]))


def hashed(case: Case, rng: np.random.Generator) -> Flows:
    """All flows by source ports drawn at random: ECMP."""
    src, dst = case.ends
    return case.fabric.flows(src, dst, rng.choice(DYNAMIC_PORTS, src.size))


def together(case: Case) -> list[Deployment]:
    """All jobs planned at once."""
    return plan_jobs(case.fabric, case.jobs)


def alone(case: Case) -> list[Deployment]:
    """Each job planned as if there were no other."""
    return [plan_job(case.fabric, *job) for job in case.jobs]


def around(case: Case) -> list[Deployment]:
    """Each job planned around those before it, which stay where they are."""
    made: list[Deployment] = []
    for job in case.jobs:
        others = [Background.of_plans(case.fabric, [plan]) for plan in made]
        made.append(plan_job(case.fabric, *job, around=reduce(add, others) if others else None))
    return made


def flows_of(case: Case, plans: Sequence[Deployment]) -> Flows:
    """Flows by the ports of plans, in the order of `Case.ends`."""
    paths = [plan.paths(case.fabric) for plan in plans]
    return case.fabric.flows(*case.ends, np.concatenate([path.source_port for path in paths]),
                             np.concatenate([path.dst_port for path in paths]))
