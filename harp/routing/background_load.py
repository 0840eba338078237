"""Background traffic on a fabric, so that a plan leaves room for it.

Background traffic keeps its paths and rates. A plan around it uses the remaining fabric: links of a
lower rate (`Background.left`), and hosts with fewer UDP ports. It is given by plans of other jobs,
whose flows keep their demand but share a link fairly with one more flow, and by rates of links,
measured or stated, which are assumed to be constant.

>>> from harp.routing.templates import Endpoints, leaf_spine
>>> fabric = leaf_spine(Endpoints.uniform(hosts=8, bps=100e9), leaves=2, spines=4)
>>> others = Background.of_rates(fabric, {"leaf0->spine1": 60e9})
>>> float(others.left(fabric).link_bps[fabric.links_between("leaf0", "spine1")[0]])
40000000000.0
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from harp.routing.path_plan import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from harp.routing.deployment import Deployment
    from harp.routing.fabric import Fabric

LEAST_SHARE = 0.01
"""Least share of its rate that a link keeps, for flows that have no other path."""


@dataclass(frozen=True, eq=False)
class Background:
    """Traffic of others.

    ``bps`` and ``least_bps`` have shape (links,): its rate, and the least that it leaves to one
    of our flows. ``ports`` has the UDP ports that are taken on each host, by its
    number.
    """

    bps: NDArray[np.float64]
    least_bps: NDArray[np.float64]
    ports: Mapping[int, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of_rates(cls, fabric: Fabric, rates: Mapping[str, float]) -> Background:
        """Take bits/s of links by name, ``leaf0->spine1``; of several such links each has it.

        Raises KeyError for a link that the fabric does not have.
        """
        numbers = fabric.links_by_name
        bps = np.zeros(len(fabric.link_bps))
        for name, rate in rates.items():
            bps[numbers[name]] += rate
        return cls(bps, LEAST_SHARE * fabric.link_bps)

    @classmethod
    def of_plans(cls, fabric: Fabric, plans: Sequence[Deployment]) -> Background:
        """Take the demand of other jobs' flows, and the ports of those jobs.

        Raises PlanError where a plan is of another fabric.
        """
        bps, flows = np.zeros((2, len(fabric.link_bps)))
        ports: dict[int, set[int]] = {}
        for plan in plans:
            try:
                paths = plan.paths(fabric)
            except KeyError as error:
                raise PlanError(f"the fabric has no {error.args[0]}: the plan was made for another "
                                "fabric") from error
            flow, _ = np.nonzero(paths.links >= 0)
            np.add.at(bps, paths.links[paths.links >= 0], paths.demand_bps[flow])
            np.add.at(flows, paths.links[paths.links >= 0], 1)
            for host, port in plan.ports(fabric):
                ports.setdefault(host, set()).add(port)
        return cls(bps, fabric.link_bps / (flows + 1),
                   {host: frozenset(some) for host, some in ports.items()})

    def __add__(self, other: Background) -> Background:
        """Add both."""
        hosts = {*self.ports, *other.ports}
        return Background(self.bps + other.bps, np.minimum(self.least_bps, other.least_bps), {
            host: self.ports.get(host, frozenset()) | other.ports.get(host, frozenset())
            for host in hosts})

    def left(self, fabric: Fabric) -> Fabric:
        """Subtract it from the links' rates."""
        return replace(fabric, link_bps=np.maximum(fabric.link_bps - self.bps, self.least_bps))
