"""Background flows as connections of kernel TCP: each by a handshake of its own, closed after."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from harp.collectives.window import NCCL_WINDOW
from sim.network.background import segment_bytes
from sim.network.packet.packet_world import End, Stage, Tcp

if TYPE_CHECKING:
    import simpy

    from sim.network.background import BackgroundFlow, FlowRoutes
    from sim.network.packet.timed_world import TimedWorld
    from sim.network.transport import Transport


class TcpCarrier:
    """See `sim.network.background.Carrier`.

    Args:
        transport: gives the size of a segment.
        timed: where connections are made.
    """

    def __init__(self, transport: Transport, timed: TimedWorld) -> None:
        self._segment = segment_bytes(transport)
        self._timed, self._world = timed, timed.world
        self._free = self._world.add_chain([], [])
        self._ends: dict[int, End] = {}
        self._routes: dict[tuple[int, ...], int] = {}
        self._closed: dict[tuple[int, int, str], list[int]] = defaultdict(list)
        self._channels: dict[int, int] = {}

    def begin(self, number: int, flow: BackgroundFlow, routes: FlowRoutes,
              congestion: str) -> simpy.Event:
        """Connect, and send a flow piece by piece."""
        kept = self._closed[flow.src, flow.dst, congestion]
        channel = kept.pop() if kept else self._add_channel(flow, routes, congestion)
        self._channels[number] = channel
        self.reroute(number, routes)
        self._world.name_path(channel, 0, routes.ips, routes.ports)
        pieces = -(-flow.nbytes // NCCL_WINDOW.slot_bytes)
        done = self._timed.run(2, 1, iter([Stage([0], [1], [channel], [flow.nbytes], [pieces])]),
                                flow.nbytes)

        def close(_: simpy.Event) -> None:
            self._world.close(self._channels.pop(number))
            kept.append(channel)

        done.callbacks.append(close)
        return done

    def reroute(self, number: int, routes: FlowRoutes) -> None:
        """Put a flow on other links."""
        self._world.set_routes(self._channels[number], [self._route(routes.there)],
                               [self._route(routes.back)])

    def _add_channel(self, flow: BackgroundFlow, routes: FlowRoutes, congestion: str) -> int:
        return self._world.add_tcp(
            self._end(flow.src), self._end(flow.dst), [self._route(routes.there)],
            [self._route(routes.back)], Tcp(*self._segment, congestion))

    def _end(self, endpoint: int) -> End:
        """A process of the NIC's host, which costs no time."""
        if endpoint not in self._ends:
            self._ends[endpoint] = End(self._world.add_process(), self._free, self._free)
        return self._ends[endpoint]

    def _route(self, links: list[int]) -> int:
        key = tuple(links)
        if key not in self._routes:
            self._routes[key] = self._world.add_route(links)
        return self._routes[key]
