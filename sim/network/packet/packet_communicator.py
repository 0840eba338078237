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
from sim.network.packet.packet_world import Stage
from sim.network.packet.repeats import Took
from sim.network.packet_routes import find_routes
from sim.network.transport import edges_on_channels

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence

    import simpy
    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan
    from harp.collectives.ir import LocalCost, Phase
    from harp.collectives.protocol import Protocol
    from sim.network.limits import LimitWatch
    from sim.network.packet.packet_world import End, World
    from sim.network.packet.repeats import Repeats, Uses
    from sim.network.packet.timed_world import TimedWorld
    from sim.network.packet_routes import OneWayRoute, Route
    from sim.network.transport import Transport
    from sim.records.timeline_track import Timeline

    Ints = NDArray[np.int64]
    Limits = list[tuple[float, str]]


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


class Transfer:
    """Phases that run together.

    Args:
        phases: one after the other, rank by rank.
        ranks: of the plan.
        placement: for each channel the GPU of each rank.
        protocol: cuts pieces.
    """

    def __init__(self, phases: Sequence[Phase], ranks: int, placement: Sequence[Ints],
                 protocol: Protocol) -> None:
        self.ranks, self.placement, self.protocol = ranks, placement, protocol
        self.parts = [part for phase in phases for part in in_batches(phase)]
        self.is_large = sum(len(part.src) for part in self.parts) > MOST_AT_ONCE


class PacketCommunicator:
    """The GPUs of one job as ranks, and their connections.

    Args:
        transport: routes and costs of messages.
        timed: the network under simpy.
        limits: names the limits of transfers; None: no names.
        repeats: knows the collectives that repeat themselves; None: all are simulated.
    """

    def __init__(self, transport: Transport, timed: TimedWorld,
                 limits: LimitWatch | None, repeats: Repeats | None = None) -> None:
        self.transport, self.timed, self._limits = transport, timed, limits
        self._repeats = repeats
        self._uses: dict[int, Uses] = {}
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
        move = partial(self._run_phases, plan=plan, placement=placement, line=line, label=label,
                       protocol=protocol)
        for phase in plan.phases():
            if phase.local is None:
                together.append(phase)
                continue
            yield from move(together)
            together = []
            yield from line.wait(local_s(phase.local), "selection", f"{label} {phase.label}")
        yield from move(together)

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
            world.set_routes(number, [_add_route(world, route.there) for route in paths],
                             [_add_route(world, route.back) for route in paths])

    def _run_phases(self, phases: Sequence[Phase], *, plan: Plan, placement: Sequence[Ints],
                    line: Timeline, label: str,
                    protocol: Protocol) -> Generator[simpy.Event, None, None]:
        if not phases:
            return
        start_s = self.env.now
        transfer = Transfer(phases, plan.ranks, placement, protocol)
        if self._repeats is None:
            limits = yield from self._move(transfer)
        else:
            names = tuple(phase.label for phase in phases)
            key = plan, names, protocol, tuple(gpus.tobytes() for gpus in placement)
            limits = yield from self._move_or_repeat(key, transfer, self._repeats)
        line.transfer(f"{label} {' + '.join(phase.label for phase in phases)}".strip(), start_s,
                      limits)

    def _move(self, transfer: Transfer,
              use: Callable[[Uses], None] | None = None) -> Generator[simpy.Event, None, Limits]:
        """Simulate; returns the limits for `Timeline.transfer`."""
        start_s = self.env.now
        limits = self._limits.begin(start_s) if self._limits else None
        taken: dict[int, Key] = {}
        parts = transfer.parts
        nbytes = sum(int(part.bytes_per_edge.sum()) for part in parts)
        stages = self._stages(transfer, taken)
        if use is not None:
            use(None if transfer.is_large else self._used_by(taken))
        yield self.timed.run(transfer.ranks * len(transfer.placement), len(parts), stages, nbytes)
        self._give_back(taken)
        return limits(self.env.now) if limits else []

    def _move_or_repeat(self, key: Hashable, transfer: Transfer,
                        repeats: Repeats) -> Generator[simpy.Event, None, Limits]:
        """Simulate, or take the time that it took before."""
        start_s = self.env.now
        batch, number = yield from repeats.join(key)
        if batch.is_known:
            took = batch.kind.mean(number)
            yield self.env.timeout(took.seconds)
            limits = [(start_s, took.limit)] if took.limit is not None else []
        else:
            limits = yield from self._move(transfer, partial(repeats.use, batch))
            took = Took(self.env.now - start_s, limits[-1][1] if limits else None)
        repeats.end(batch, number, took)
        return limits

    def _used_by(self, channels: Iterable[int]) -> Uses:
        """Resources that channels use; None: any path of the fabric."""
        found: set[Hashable] = set()
        for number in channels:
            uses = self._uses[number]
            if uses is None:
                return None
            found |= uses
        return frozenset(found)

    def _give_back(self, taken: dict[int, Key]) -> None:
        for number, key in taken.items():
            self._idle[key].append(number)

    def _stages(self, transfer: Transfer, taken: dict[int, Key]) -> Iterator[Stage]:
        """Stages in order; those of a large all-to-all, one by one, as the run comes to them."""
        made = (self._stage(part, transfer, taken) for part in transfer.parts)
        return made if transfer.is_large else iter(list(made))

    def _stage(self, phase: Phase, transfer: Transfer, taken: dict[int, Key]) -> Stage:
        """One phase on all its channels; ranks are numbered channel after channel."""
        placement, protocol, ranks = transfer.placement, transfer.protocol, transfer.ranks
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
                self._uses[number] = self.timed.servers(chain)
            self._idle[key].append(number)

    def _connect(self, key: Key, routes: Sequence[Route]) -> int:
        src, dst, channel = key[:3]
        world = self.timed.world
        delay_s, message_s = self.transport.message_costs_s(src, dst)
        delay_s = float(quicker_s(np.asarray(delay_s), key.protocol))
        add = world.add_connection if self.timed.tcp is None else partial(
            world.add_tcp, tcp=self.timed.tcp)
        ends = (self.timed.end(src, channel, sends=True),
                self.timed.end(dst, channel, sends=False))
        number = add(
            *ends,
            [_add_route(world, route.there) for route in routes],
            [_add_route(world, route.back) for route in routes], delay_s=delay_s,
            message_s=message_s)
        for path, route in enumerate(routes):
            world.name_path(number, path, route.ips, route.ports)
        self._uses[number] = self._used_between(ends, routes)
        return number

    def _used_between(self, ends: Sequence[End], routes: Sequence[Route]) -> Uses:
        """Servers, processes, links and switches; None: any path."""
        each_way = [one for route in routes for one in (route.there, route.back)]
        if any(one.to >= 0 for one in each_way):
            return None
        chains = [chain for end in ends for chain in end[1:]]
        links = sorted({link for one in each_way for link in one.links})
        servers: frozenset[Hashable] = frozenset().union(*map(self.timed.servers, chains))
        return (servers | {("process", end.process) for end in ends}
                | {("link", link) for link in links}
                | {("switch", switch) for switch in self.timed.switches(links)})


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


def _add_route(world: World, route: OneWayRoute) -> int:
    """Make a route of it."""
    return (world.add_route(route.links) if route.to < 0 else
            world.add_spray(route.links[0], route.to))
