"""The packet network of one simulation: hosts and links from a cluster, time from simpy.

simpy sees only the next event of the packet network. At that event the packet network runs by
itself to the next event of simpy, since nothing outside can happen before, or to the end of a run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from harp._cnet import lib
from harp.collectives.protocol import PROTOCOLS
from harp.collectives.window import NCCL_WINDOW
from sim.network.interface import CutOffError, TooLargeError
from sim.network.packet import assumptions
from sim.network.packet.packet_world import (
    NIC,
    NO_LIMIT,
    ConnectionEndedError,
    End,
    PauseLoopError,
    Tcp,
    World,
)
from sim.network.packet.usage import Usage
from sim.schema.input_errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    import simpy
    from numpy.typing import ArrayLike, NDArray

    from harp.routing.fabric import Fabric
    from sim.cluster.cluster import Cluster
    from sim.network.packet.packet_world import Stage
    from sim.network.transport import Transport
    from sim.schema.network_keys import Burst, Pfc

    Ints = NDArray[np.int64]
    Rows = list[tuple[Ints, Ints, ArrayLike]]

NS = 1e-9


class TimedWorld:
    """Runs of collectives over packets as simpy events.

    Args:
        env: the simpy environment.
        transport: what messages use; its fabric's links are the network's.
        records_use: keep utilisation over time.
    """

    def __init__(self, env: simpy.Environment, transport: Transport, *,
                 records_use: bool = False) -> None:
        self.env, self.transport = env, transport
        stack, cluster = transport.stack, transport.cluster
        overlay = round((transport.link_bytes - transport.cap_bytes) * transport.payload
                        / transport.on_line)
        payload = int(transport.payload)  # a draw of headers need not be whole
        self.segment = payload // lib.HARP_CHUNK_ALIGN * lib.HARP_CHUNK_ALIGN
        self._frames = 0
        self._frame_bytes = round(transport.payload + stack.headers.value) + overlay
        self.world = World(
            seed=transport.seed, segment=self.segment,
            overhead=round(stack.headers.value) - lib.HARP_HEADER_BYTES + overlay,
            slots=NCCL_WINDOW.slots,
            piece_bytes=max(protocol.window.slot_bytes for protocol in PROTOCOLS),
            unit_bytes=assumptions.UNIT_BYTES)
        self.tcp = None if transport.style.congestion is None else Tcp(
            payload, round(stack.headers.value) + overlay, transport.style.congestion)
        """The sockets of connections, where they are kernel TCP's."""
        self._capacity = transport.capacity
        self._bursts = _bursts(cluster)
        vpc = cluster.topology.vpc
        self._police = vpc.police if vpc is not None else None
        self._caps = _caps(cluster)
        self._servers: dict[int, int] = {}
        self._chains: dict[tuple[tuple[int, float], ...], int] = {}
        self._stops: dict[int, frozenset[int]] = {}
        self._processes: dict[int, int] = {}
        self._runs: dict[int, tuple[simpy.Event, Iterator[Stage]]] = {}
        self._rings = [nic.ring for group in cluster.topology.hosts for _ in range(group.count)
                       for nic in group.nics for _ in range(nic.count)]
        self._version = 0
        self._stood_ns = 0
        self.usage = Usage(cluster, self._capacity, self.world, records=records_use)
        self._add_links()

    def _add_links(self) -> None:
        fabric = self.transport.links.whole
        switches = len(fabric.switches)
        switch = self.transport.cluster.topology.fabric.switch
        for source, target, bps, latency_s in zip(
                fabric.link_src.tolist(), fabric.link_dst.tolist(), fabric.link_bps.tolist(),
                fabric.link_latency_s.tolist(), strict=True):
            self.world.add_link(bps / self.transport.on_line, latency_s,
                                source=source if source < switches else NIC,
                                target=target if target < switches else NIC,
                                mark_bytes=switch.mark_bytes(bps) if source < switches else 0)
        self.world.share_buffers(switches, switch.buffer, switch.alpha)
        if switch.acks_first:
            self.world.put_acks_first()
        if switch.pfc is not None:
            self._add_pauses(fabric, switch.buffer, switch.pfc)

    def _add_pauses(self, fabric: Fabric, buffer: int, pfc: Pfc) -> None:
        """Raise TopologyError where a switch's buffer does not hold the headroom of its links."""
        links = zip(fabric.link_bps.tolist(), fabric.link_latency_s.tolist(), strict=True)
        headroom = np.array([pfc.headroom_bytes(*link, self._frame_bytes) for link in links])
        inside = fabric.link_dst < len(fabric.switches)
        least = np.bincount(fabric.link_dst[inside], headroom[inside] + (pfc.xoff or 0))
        if least.max(initial=0) > buffer:
            at = int(least.argmax())
            what = "headroom" if pfc.xoff is None else "headroom and xoff"
            raise self.transport.cluster.topology.error(Problem(
                f"a buffer of {buffer} B for the {what} of the links to {fabric.switches[at]}",
                path=("fabric", "switch", "pfc"), at_key=True,
                allowed=f"a buffer of at least {round(least[at])}B"))
        self.world.set_pfc(headroom, pfc.xoff or 0, pfc.xon_offset or 2 * self._frame_bytes)

    # ---- hosts

    def end(self, gpu: int, channel: int, *, sends: bool) -> End:
        """One end of a connection of ``gpu``; the sender has the ceilings of a flow."""
        chains = []
        for way in ("out", "in"):
            rows: Rows = []
            one = np.zeros(1, np.int64)
            self.transport.add_host(one, np.array([gpu]), way, one + channel, rows)
            chains.append(self._chain(rows, self._ceilings() if sends and way == "out" else []))
        if gpu not in self._processes:
            self._processes[gpu] = self.world.add_process(self._ring(gpu), self._thread(gpu))
        return End(self._processes[gpu], *chains)

    def _ceilings(self) -> list[tuple[int, float]]:
        """Servers of one connection: ceilings of its flows; the VPC's may be a policer."""
        transport = self.transport
        shaped, policed = transport.ceiling, math.inf
        if self._police is not None:
            shaped, policed = transport.stack_ceiling, transport.vpc_ceiling
        made = [(self.world.add_server(), 1 / shaped)] if math.isfinite(shaped) else []
        if self._police is not None and math.isfinite(policed):
            made.append((self.world.add_policer(1 / policed, self._police.burst * policed),
                         1 / policed))
        return made

    def _thread(self, gpu: int) -> int:
        """The server of the process's thread, unless others move the bytes meanwhile."""
        thread = self.transport.cluster.blocks["thread"][gpu]
        return -1 if self.transport.helped else self._servers[int(thread)]

    def _ring(self, gpu: int) -> int:
        """Descriptors of the GPU's NIC, of the first one where it has several."""
        return self._rings[int(self.transport.cluster.endpoint[gpu])]

    def servers(self, chain: int) -> frozenset[int]:
        """Servers of a chain."""
        return self._stops[chain]

    def switches(self, links: list[int]) -> list[int]:
        """Switches at either end of links."""
        fabric = self.transport.links.whole
        ends = np.concatenate([fabric.link_src[links], fabric.link_dst[links]])
        return [int(switch) for switch in np.unique(ends) if switch < len(fabric.switches)]

    def inside(self, src: int, dst: int) -> tuple[int, float]:
        """Chain and latency between two GPUs of one host."""
        rows: Rows = []
        alpha_s = np.zeros(1)
        self.transport.add_inside(np.zeros(1, np.int64), np.array([src]), np.array([dst]), rows,
                                  alpha_s)
        return self._chain(rows, []), float(alpha_s[0])

    def _chain(self, rows: Rows, own: list[tuple[int, float]]) -> int:
        stops = list(own)
        for edge, resource, coefficient in rows:
            costs = np.broadcast_to(np.asarray(coefficient, np.float64), len(edge))
            for number, cost in zip(resource.tolist(), costs.tolist(), strict=True):
                stops.append((self._server(number, cost), cost / self._capacity[number]))
        key = tuple(stops)
        if key not in self._chains:
            self._chains[key] = self.world.add_chain(*zip(*stops, strict=True))
            self._stops[self._chains[key]] = frozenset(server for server, _ in stops)
        return self._chains[key]

    def _server(self, resource: int, cost: float) -> int:
        """Server of a resource; a byte uses ``cost`` units of it."""
        if resource not in self._servers:
            self._servers[resource] = self._add_server(resource, cost)
            self.usage.watch(resource, self._servers[resource], cost)
        return self._servers[resource]

    def _add_server(self, resource: int, cost: float) -> int:
        rate = self._capacity[resource] / cost
        burst = self._bursts.get(resource)
        if self._police is not None and resource in self._caps:
            return self.world.add_policer(1 / rate, self._police.burst * rate)
        if burst is not None:
            return self.world.add_bucket(1 / rate, self._capacity[resource] / (burst.rate / 8),
                                         burst.bucket / cost)
        return self.world.add_server()

    # ---- runs

    def run(self, ranks: int, count: int, stages: Iterator[Stage], nbytes: int) -> simpy.Event:
        """Begin a run now, of ``count`` stages and ``nbytes``; the event comes when it is done."""
        self._advance()
        self._frames += nbytes // self.segment
        if self._frames > assumptions.MOST_FRAMES:
            raise TooLargeError(f"{self._frames:,} frames by {self.env.now:.4g} s are more than "
                                f"the {assumptions.MOST_FRAMES:,} of fidelity packet")
        done = self.env.event()
        number = self.world.add_run(ranks, count)
        self._runs[number] = done, stages
        self._reschedule()
        return done

    def change(self, links: Ints, bits_per_s: NDArray[np.float64]) -> None:
        """Change links' rates now (a fault, a repair)."""
        self._advance()
        for link, rate in zip(links.tolist(), bits_per_s.tolist(), strict=True):
            self.world.set_rate(link, rate / self.transport.on_line)
        self._reschedule()

    @property
    def running(self) -> int:
        """Number of open runs."""
        return len(self._runs)

    def stand(self, seconds: float) -> None:
        """Take this time, in which no run was open, out of the network's: its clock stood."""
        self._stood_ns += round(seconds / NS)

    def _now_ns(self) -> int:
        return max(round(self.env.now / NS) - self._stood_ns, self.world.now_ns)

    def _seconds(self, network_ns: int) -> float:
        """The time of simpy's clock at a time of the network's."""
        return (network_ns + self._stood_ns) * NS

    def _advance(self) -> None:
        """Bring the network up to simpy's clock."""
        self._go(self._now_ns())

    def _go(self, until_ns: int) -> None:
        """Run up to ``until_ns``, or to the first end of a run."""
        while True:
            try:
                what, run = self.world.advance(until_ns)
            except ConnectionEndedError as error:
                raise CutOffError(f"a connection ended: {error}") from error
            except PauseLoopError as error:
                links = map(self.transport.links.whole.link_name, error.links)
                raise self.transport.cluster.topology.error(Problem(
                    f"switches pause one another in a circle: {', '.join(links)}",
                    path=("fabric", "switch", "pfc"), at_key=True,
                    allowed="routes without a circle, or no pfc")) from error
            if what == "load":
                self.world.load(run, next(self._runs[run][1]))
                continue
            if what == "done":
                self._complete(self._runs.pop(run)[0])
            return

    def _complete(self, done: simpy.Event) -> None:
        """Fire when simpy's clock is where the network's is."""
        ahead_s = self._seconds(self.world.now_ns) - self.env.now
        if ahead_s > 0:
            self.env.timeout(ahead_s).callbacks.append(lambda _: _fire(done))
        else:
            done.succeed()

    def _reschedule(self) -> None:
        """Come back when something happens in the network, if anybody waits for it."""
        self._version += 1
        next_ns = self.world.next_ns
        if not self._runs or next_ns == NO_LIMIT:
            return
        version = self._version
        wait_s = max(self._seconds(next_ns) - self.env.now, 0.0)
        self.env.timeout(wait_s).callbacks.append(lambda _: self._tick(version))

    def _tick(self, version: int) -> None:
        if version != self._version:
            return
        next_s = self.env.peek()
        until_ns = (NO_LIMIT if math.isinf(next_s)
                    else max(math.floor(next_s / NS) - self._stood_ns, self._now_ns()))
        if self.usage.records:
            self._go(self.usage.limit(until_ns))
            self.usage.sample()
        else:
            self._go(until_ns)
        self._reschedule()


def _fire(event: simpy.Event) -> None:
    event.succeed()


def _caps(cluster: Cluster) -> frozenset[int]:
    """Resources that are caps of the VPC."""
    blocks = [cluster.blocks[f"{kind}_{way}"] for kind in ("vnic", "host", "packets")
              for way in ("out", "in") if f"{kind}_{way}" in cluster.blocks]
    return frozenset(block.first + row for block in blocks for row in range(len(block.capacity)))


def _bursts(cluster: Cluster) -> dict[int, Burst]:
    """The VPC's token bucket on each cap of a host, out and in."""
    vpc = cluster.topology.vpc
    if vpc is None or vpc.burst is None or vpc.host_rate is None:
        return {}
    return {int(cluster.blocks[f"host_{way}"][host]): vpc.burst
            for way in ("out", "in") for host in range(cluster.hosts)}
