"""Run a collective plan over packets: channels between GPUs, and its phases as stages of pieces.

Each pair of GPUs that talks on a channel has a connection of its own, made when it is first used,
as NCCL's ranks have. A plan's phases follow one another without a barrier, rank by rank; only
before and after the GPUs' own work (top-k selection) do all ranks wait for one another.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.collectives.protocol import SIMPLE
from sim.network.message_paths import quicker_s
from sim.network.packet.world import Stage
from sim.network.packet_routes import find_routes
from sim.network.transport import edges_on_channels

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import simpy
    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan
    from harp.collectives.ir import LocalCost, Phase
    from harp.collectives.protocol import Protocol
    from sim.network.limits import LimitWatch
    from sim.network.packet.timed_world import TimedWorld
    from sim.network.packet.world import World
    from sim.network.packet_routes import Route, Way
    from sim.network.transport import Transport
    from sim.records.timeline import Timeline

    Ints = NDArray[np.int64]


BATCH = 8
"""Concurrent sends, and receives, of a channel in an all-to-all of NCCL
(NCCL_MAX_DEV_WORK_P2P_PER_BATCH, src/include/device.h of 2.22 to 2.27)."""
MOST_AT_ONCE = 1 << 16
"""Edges of a run above which connections are opened stage by stage. Below, all open at the start,
so that only the first stage waits for a handshake, as NCCL connects before it begins."""


class Key(NamedTuple):
    """Key of a channel."""

    src: int
    dst: int
    channel: int
    copy: int
    """Number among the channels between these GPUs on the same channel of NCCL."""
    protocol: Protocol
    """It decides the latency."""


class PacketCommunicator:
    """The GPUs of one job as ranks, and their connections.

    Args:
        transport: routes and costs of messages.
        timed: the network under simpy.
        limits: names the limits of transfers; None: no names.
    """

    def __init__(self, transport: Transport, timed: TimedWorld,
                 limits: LimitWatch | None) -> None:
        self.transport, self.timed, self._limits = transport, timed, limits
        self._idle: dict[Key, list[int]] = defaultdict(list)
        self._routed: dict[int, Key] = {}
        self._paths: dict[int, int] = {}

    @property
    def env(self) -> simpy.Environment:
        """The simulation's clock."""
        return self.timed.env

    def run(self, plan: Plan, placement: Sequence[Ints], local_s: Callable[[LocalCost], float],
            line: Timeline, label: str = "",
            protocol: Protocol = SIMPLE) -> Generator[simpy.Event, None, None]:
        """Run a plan, as the protocol says: phases between local work at once, piece by piece."""
        together: list[Phase] = []
        for phase in plan.phases():
            if phase.local is None:
                together.append(phase)
                continue
            yield from self._run_phases(together, plan.ranks, placement, line, label,
                                        protocol)
            together = []
            yield from line.wait(local_s(phase.local), "selection", f"{label} {phase.label}")
        yield from self._run_phases(together, plan.ranks, placement, line, label, protocol)

    def announce(self, plan: Plan, placement: Sequence[Ints]) -> None:
        """See `sim.network.interface.Communicator`."""
        self.transport.announce_plan(plan, placement)

    def reroute(self) -> None:
        """Route all connections again after a change of the links."""
        if not self._routed:
            return
        world = self.timed.world
        src, dst, channel = (np.array(column) for column in list(zip(
            *self._routed.values(), strict=True))[:3])
        for number, routes in zip(self._routed, find_routes(self.transport, src, dst, channel),
                                  strict=True):
            # A port that is down has no path: those that are left take its place.
            paths = [routes[path % len(routes)] for path in range(self._paths[number])]
            world.set_routes(number, [_add_way(world, route.there) for route in paths],
                             [_add_way(world, route.back) for route in paths])

    def _run_phases(self, phases: Sequence[Phase], ranks: int, placement: Sequence[Ints],
                    line: Timeline, label: str,
                    protocol: Protocol) -> Generator[simpy.Event, None, None]:
        if not phases:
            return
        start_s = self.env.now
        limits = self._limits.begin(start_s) if self._limits else None
        taken: dict[int, Key] = {}
        parts = [part for phase in phases for part in in_batches(phase)]
        nbytes = sum(int(phase.bytes_per_edge.sum()) for phase in phases)
        stages = self._stages(parts, ranks, placement, taken, protocol)
        yield self.timed.run(ranks * len(placement), len(parts), stages, nbytes)
        for number, key in taken.items():
            self._idle[key].append(number)
        line.transfer(f"{label} {' + '.join(phase.label for phase in phases)}".strip(), start_s,
                      limits(self.env.now) if limits else ())

    def _stages(self, parts: Sequence[Phase], ranks: int, placement: Sequence[Ints],
                taken: dict[int, Key], protocol: Protocol) -> Iterator[Stage]:
        """Stages in order; those of a large all-to-all, one by one, as the run comes to them."""
        if sum(len(part.src) for part in parts) > MOST_AT_ONCE:
            return (self._stage(part, ranks, placement, taken, protocol) for part in parts)
        return iter([self._stage(part, ranks, placement, taken, protocol) for part in parts])

    def _stage(self, phase: Phase, ranks: int, placement: Sequence[Ints],
               taken: dict[int, Key], protocol: Protocol) -> Stage:
        """One phase on all its channels; ranks are numbered channel after channel."""
        src, dst, channel = edges_on_channels(phase, placement)
        edges, copies = len(phase.src), len(placement)
        nbytes = np.tile(phase.bytes_per_edge, copies)
        share = (nbytes * (channel + 1)) // copies - (nbytes * channel) // copies
        first = np.repeat(np.arange(copies), edges)
        pieces = np.maximum(1, -(-share // protocol.window.slot_bytes))
        messages = 1 / int(pieces.max(initial=1))  # in lock step one each, however long
        lag, source, target = 0, np.empty(0, np.int64), np.empty(0, np.int64)
        if phase.feeds is not None:
            cut = protocol.window.cut(phase, copies)
            lag, pieces, messages = cut.lag, np.full(len(src), cut.pieces), cut.messages
            offset = np.repeat(np.arange(copies) * edges, len(phase.feeds.source))
            source = np.tile(phase.feeds.source, copies) + offset
            target = np.tile(phase.feeds.target, copies) + offset
        return Stage(np.tile(phase.src, copies) + first * ranks,
                     np.tile(phase.dst, copies) + first * ranks,
                     self._take_channels(src, dst, channel, taken, protocol), share,
                     pieces, lag, source, target, messages)

    def _take_channels(self, src: Ints, dst: Ints, channel: Ints, taken: dict[int, Key],
                       protocol: Protocol) -> Ints:
        """Channels for these edges: idle ones, or those that this run has, or new ones."""
        have: dict[Key, int] = {key: number for number, key in taken.items()}
        count: dict[tuple[int, int, int], int] = defaultdict(int)
        keys: list[Key] = []
        for pair in zip(src.tolist(), dst.tolist(), channel.tolist(), strict=True):
            keys.append(Key(*pair, count[pair], protocol))  # a pair that both trees use has two
            count[pair] += 1
        missing = [key for key in keys if key not in have and not self._idle[key]]
        self._open(missing)
        for key in keys:
            if key not in have:
                have[key] = self._idle[key].pop()
                taken[have[key]] = key
        return np.array([have[key] for key in keys])

    def _open(self, keys: Sequence[Key]) -> None:
        """Make channels that are idle."""
        if not keys:
            return
        cluster, world = self.transport.cluster, self.timed.world
        src, dst, channel = (np.array(column) for column in list(zip(*keys, strict=True))[:3])
        outer = np.flatnonzero(cluster.host[src] != cluster.host[dst])
        routes = dict(zip(outer.tolist(), find_routes(
            self.transport, src[outer], dst[outer], channel[outer]), strict=True))
        for at, key in enumerate(keys):
            if at in routes:
                number = self._connect(key, routes[at])
                self._routed[number], self._paths[number] = key, len(routes[at])
            else:
                chain, delay_s = self.timed.inside(key.src, key.dst)
                number = world.add_pipe(chain, delay_s * key.protocol.inner)
            self._idle[key].append(number)

    def _connect(self, key: Key, routes: Sequence[Route]) -> int:
        src, dst, channel = key[:3]
        world = self.timed.world
        delay_s, message_s = self.transport.message_costs_s(src, dst)
        delay_s = float(quicker_s(np.asarray(delay_s), key.protocol))
        add = world.add_connection if self.timed.tcp is None else partial(
            world.add_tcp, tcp=self.timed.tcp)
        number = add(
            self.timed.end(src, channel, sends=True),
            self.timed.end(dst, channel, sends=False),
            [_add_way(world, route.there) for route in routes],
            [_add_way(world, route.back) for route in routes], delay_s=delay_s,
            message_s=message_s)
        for path, route in enumerate(routes):
            world.name_path(number, path, route.ips, route.ports)
        return number


def in_batches(phase: Phase) -> list[Phase]:
    """Cut what all ranks send one another into stages of `BATCH` messages from each.

    A rank sends to the next ranks first, and so receives from those before it.
    """
    if phase.feeds is not None or not len(phase.src):
        return [phase]
    ahead = (phase.dst - phase.src) % (int(max(phase.src.max(), phase.dst.max())) + 1)
    order = np.lexsort((ahead, phase.src))
    src = phase.src[order]
    number = np.arange(len(src)) - np.searchsorted(src, src)
    if number.max() < BATCH:
        return [phase]
    parts = (np.sort(order[number // BATCH == batch]) for batch in range(number.max() // BATCH + 1))
    return [replace(phase, src=phase.src[part], dst=phase.dst[part],
                    bytes_per_edge=phase.bytes_per_edge[part], group=phase.group[part])
            for part in parts]


def _add_way(world: World, way: Way) -> int:
    """Make a route of it."""
    return world.add_route(way.links) if way.to < 0 else world.add_spray(way.links[0], way.to)
