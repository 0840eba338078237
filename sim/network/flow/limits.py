"""Name what holds a flow back: the kinds of the resources that are saturated on its route."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.network.flow.fluid import CEILING
from sim.network.limits import kinds_of_resources

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from sim.cluster.cluster import Cluster

FLOW = "one flow"
"""The ceiling of a flow: the stack's or the VPC's on one five-tuple."""
STALLED = "fault"
"""No resource holds a flow back that crosses a link without capacity."""


def name_limits(cluster: Cluster) -> Callable[[NDArray[np.int32]], str]:
    """A function that names what holds a flow back, given the saturated resources of its route.

    Where several are saturated at once each is named, since none of them alone is worth raising.
    """
    names, kind_of = kinds_of_resources(cluster)

    def name(saturated: NDArray[np.int32]) -> str:
        if not len(saturated):
            return STALLED
        own = [FLOW] if saturated[0] == CEILING else []
        kinds = np.unique(kind_of[saturated[len(own):]])
        return " + ".join(own + [names[kind] for kind in kinds.tolist()])

    return name
