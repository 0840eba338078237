"""Background flows as fluids: each takes its share of its links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.network.background import segment_bytes

if TYPE_CHECKING:
    import simpy

    from sim.network.background import BackgroundFlow, FlowRoutes
    from sim.network.flow.timed_fluid import FlowSet, TimedFluid
    from sim.network.transport import Transport


class FluidCarrier:
    """See `sim.network.background.Carrier`.

    Args:
        transport: gives the links.
        fluid: moves the flows.
    """

    def __init__(self, transport: Transport, fluid: TimedFluid) -> None:
        self._fluid, self._links = fluid, transport.cluster.blocks["link"]
        payload, headers = segment_bytes(transport)
        self._link_bytes = transport.on_line * (payload + headers) / payload
        self._routes: dict[tuple[int, ...], int] = {}
        self._moving: dict[int, FlowSet] = {}
        self.begun = 0
        """Flows so far."""

    def begin(self, number: int, flow: BackgroundFlow, routes: FlowRoutes,
              congestion: str) -> simpy.Event:  # noqa: ARG002  (fluids have none)
        """Begin a flow."""
        self.begun += 1
        moving = self._fluid.move([self._route(routes)], [float(flow.nbytes)], watched=False)
        self._moving[number] = moving

        def forget(_: simpy.Event) -> None:
            del self._moving[number]

        moving.done.callbacks.append(forget)
        return moving.done

    def reroute(self, number: int, routes: FlowRoutes) -> None:
        """Put a flow on other links."""
        flows = self._moving[number]
        running = self._fluid.running(flows)
        if running.any():
            self._fluid.reroute(flows.flows, [self._route(routes)])

    def _route(self, routes: FlowRoutes) -> int:
        links = tuple(routes.there)
        if links not in self._routes:
            self._routes[links] = int(self._fluid.net.add_routes(
                [0, len(links)], self._links[np.array(links)],
                np.full(len(links), self._link_bytes)))
        return self._routes[links]
