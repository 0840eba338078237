"""The network of fidelity `lab`: hosts and switches in namespaces, plans run by real stacks.

Plans, placements and reports are those of the other fidelities. Cables, switches and stacks are the
kernel's and HARP's own; what a laboratory has no hardware for is paced (`sim.network.lab.pace`).
Rates are scaled down, and the clock with them, so that a step takes ``1 / scale`` times as long.
Latency of links is paced as well, since kernels may lack netem.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from harp.collectives.protocol import SIMPLE
from lab.wiring import Wiring
from sim.network.interface import NetworkError
from sim.network.lab.edges import EdgePaces, LabFlows
from sim.network.lab.lab_refusals import check_site, notes_of_site, stack_of
from sim.network.lab.messages import (
    Connect,
    Done,
    Job,
    Part,
    Peers,
    Setup,
    read_message,
    send_message,
)
from sim.network.limits import LimitWatch
from sim.network.transport import DYNAMIC, Transport
from sim.network.utilisation import LinkRecorder
from sim.network.wall_clock import WallClock

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Generator, Sequence

    import simpy
    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan
    from harp.collectives.ir import LocalCost
    from harp.collectives.protocol import Protocol
    from harp.collectives.window import Window
    from sim.network.corrections import Correction
    from sim.network.interface import Site
    from sim.records.results import LinkUse
    from sim.records.timeline_track import Timeline

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Edge = tuple[int, int, int]

MOST_LATE = 0.1
"""Lateness of processes, as a share of the time, without a note."""
SAMPLE_S = 0.05
"""By the wall clock: how often counters of links are read, where somebody wants to see them."""
PATIENCE_S = 300
"""By the wall clock: how long a collective may take."""


class LabNetwork:
    """See `sim.network.interface.Network`."""

    def __init__(self, env: simpy.Environment, site: Site) -> None:
        assert isinstance(env, WallClock)
        check_site(site, env.scale)
        self.env, self.site = env, site
        self._notes: list[str] = notes_of_site(site)
        self._busy = False
        self.remembers = False
        self.begins_cold = False
        self.transport = Transport(site.cluster, site.stack, site.style, site.seed)
        self._paces = EdgePaces(self.transport, env.scale)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (close() closes it)
        self._connected: set[tuple[int, Edge]] = set()
        self._running: dict[int, tuple[simpy.Event, set[int]]] = {}
        self._lanes: set[int] = set()
        self._numbers = count()
        cluster = site.cluster
        topology = cluster.topology
        mtu = topology.vpc.mtu if topology.vpc and topology.vpc.mtu else topology.fabric.mtu
        self._wiring = Wiring(cluster.fabric, env.scale, mtu, spray=site.style.routing == "spray")
        self._flows = LabFlows(self.transport, self._wiring,
                               "tcp" if stack_of(site) == "tcp" else "udp")
        self._capacity = self.transport.capacity
        self._asked_s = np.zeros(len(self._capacity))
        self._links = cluster.blocks["link"][np.arange(len(cluster.fabric.link_src))]
        self.limits = LimitWatch(cluster, self._used_s) if site.names_limits else None
        self._recorder = LinkRecorder(cluster, self._capacity) if site.records_use else None
        if self._recorder:
            env.process(self._sample())
        try:
            self._start_hosts()
        except BaseException:
            self.close()
            raise

    def _start_hosts(self) -> None:
        cluster = self.site.cluster
        for host, space in enumerate(self._wiring.hosts):
            own = tuple(np.flatnonzero(cluster.host == host).tolist())
            process = space.start(sys.executable, "-m", "sim.network.lab.lab_host", stdin=-1,
                                  stdout=-1, stderr=self._stderr, start_new_session=True)
            self._processes.append(process)
            assert process.stdin is not None
            send_message(process.stdin, Setup(stack_of(self.site), self._most_paths,
                                              self.site.style.congestion,
                                              round(1 / self.env.scale), SIMPLE.window,
                                              tuple(self._wiring.addresses(host)), own))
        handles: dict[str, bytes] = {}
        for host in range(len(self._processes)):
            handles.update(self._answer(host).handles)
        for host, process in enumerate(self._processes):
            assert process.stdin is not None
            assert process.stdout is not None
            send_message(process.stdin, Peers(handles))
            self.env.watch(process.stdout, partial(self._hear, host))

    @property
    def _most_paths(self) -> int:
        """Flows that an edge has at most: one a socket, and a port where it uses all of them."""
        fabric, style = self.site.cluster.fabric, self.site.style
        every = np.arange(len(fabric.endpoints))
        splits = style.routing == "spray" or DYNAMIC in self.transport.bond_policies(every)
        return style.sockets * (fabric.endpoint_ports.shape[1] if splits else 1)

    def _answer(self, host: int) -> Any:
        stdout = self._processes[host].stdout
        assert stdout is not None
        try:
            return read_message(stdout)
        except EOFError:
            raise NetworkError(f"host {host} of the lab ended: {self._last_words()}") from None

    def _last_words(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _hear(self, host: int) -> None:
        self._take_done(host, self._answer(host))

    def _take_done(self, host: int, done: Done) -> None:
        if done.error:
            raise NetworkError(f"host {host} of the lab could not run its part: {done.error}")
        if done.late > MOST_LATE and not self._busy:
            self._busy = True
            self._notes.append("The machine was too busy for the lab, whose times are too long; "
                              "a lower lab.scale, or a quieter machine, gives better ones.")
        for resource, asked_s in done.asked_s.items():
            self._asked_s[resource] = asked_s
        event, missing = self._running[done.number]
        missing.discard(host)
        if not missing:
            del self._running[done.number]
            event.succeed()

    def begin(self, plan: Plan, placement: Sequence[Ints], protocol: Protocol) -> tuple[
            simpy.Event, int]:
        """Let all hosts run their parts; gives the event of the end, and the lane."""
        number, event = next(self._numbers), self.env.event()
        lane = next(free for free in count() if free not in self._lanes)
        self._lanes.add(lane)
        where = tuple(tuple(gpus.tolist()) for gpus in placement)
        self._connect(lane, self._edges(plan, placement))
        host_of = self.site.cluster.host
        window = _window_of(plan, protocol.window, len(where))
        messages = max(protocol.window.cut(phase, len(where)).messages for phase in plan.phases())
        missing: set[int] = set()
        for host, process in enumerate(self._processes):
            parts = tuple(Part(channel, rank) for channel, gpus in enumerate(where)
                          for rank, gpu in enumerate(gpus) if host_of[gpu] == host)
            if not parts:
                continue
            missing.add(host)
            assert process.stdin is not None
            send_message(process.stdin, Job(number, lane, plan, window, messages, where,
                                            parts))
        self._running[number] = event, missing
        return event, lane

    def _connect(self, lane: int, edges: Sequence[Edge]) -> None:
        """Let hosts make the connections that they lack, which takes none of the clock's time."""
        new = [edge for edge in edges if (lane, edge) not in self._connected]
        if not new:
            return
        self._connected.update((lane, edge) for edge in new)
        number, host_of = next(self._numbers), self.site.cluster.host
        with self.env.held():
            paces, flows = self._paces.of(new), self._flows.of(new)
            asked = []
            for host, process in enumerate(self._processes):
                own = [edge for edge in new if host in (host_of[edge[1]], host_of[edge[2]])]
                outer = tuple(edge for edge in own if edge in flows)
                assert process.stdin is not None
                if own:
                    send_message(process.stdin, Connect(
                        number, lane, outer, {edge: paces[edge] for edge in own},
                        {edge: flows[edge] for edge in outer}))
                    asked.append(host)
            for host in asked:
                while (done := self._answer(host)).number != number:
                    self._take_done(host, done)
                if done.error:
                    raise NetworkError(f"host {host} of the lab could not connect: {done.error}")

    def _edges(self, plan: Plan, placement: Sequence[Ints]) -> list[Edge]:
        pairs = {pair for phase in plan.phases()
                 for pair in zip(phase.src.tolist(), phase.dst.tolist(), strict=True)}
        return sorted({(channel, int(gpus[src]), int(gpus[dst]))
                       for channel, gpus in enumerate(placement) for src, dst in pairs})

    def end(self, lane: int) -> None:
        """Give a lane back."""
        self._lanes.discard(lane)

    # ---- sim.network.interface.Network

    def communicator(self) -> LabCommunicator:
        """Make one for a job."""
        return LabCommunicator(self)

    def scale(self, share: Floats) -> None:
        """Let each link send at this share of its rate; at 0 it drops all."""
        changed = np.flatnonzero(share != self.transport.links.share)
        self.transport.links.scale(share)
        self._wiring.shape(changed.tolist(), share)

    def avoid(self, links: Ints) -> None:
        """Change the routes of hosts and switches."""
        self.transport.links.avoid(links)
        self._wiring.route(self.transport.links.fabric)
        self._flows.reroute()

    def abandon(self, links: Ints) -> None:
        """Take note that these links will never be back."""
        self.transport.links.abandon(links)

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """None are known."""
        return ()

    @property
    def notes(self) -> list[str]:
        """Notes on this laboratory for the reader."""
        return [*self._notes, *self.transport.plan.notes]

    @property
    def waits_for(self) -> str:
        """Reason why traffic waits, if no path is left for some of it."""
        return self.transport.waits_for

    @property
    def effort(self) -> int:
        """Nothing that is the same on every machine."""
        return 0

    @property
    def busy(self) -> bool:
        """Whether a collective runs."""
        return bool(self._running)

    @property
    def carried(self) -> float:
        """The time: by the wall clock nothing goes on for ever."""
        return self.env.now

    def usage(self, step_s: tuple[float, float]) -> LinkUse | None:
        """Utilisation of the busiest links during one step, by the kernel's counters."""
        return self._recorder.result(step_s) if self._recorder else None

    def forget(self, before_s: float) -> None:
        """Drop samples that only times before ``before_s`` need."""
        if self._recorder:
            self._recorder.forget(before_s)

    def _used_s(self) -> Floats:
        """Time of use of each resource so far: links by the kernel's counters."""
        used_s = self._asked_s * self.env.scale
        used_s[self._links] = self._wiring.sent_bytes() / self._capacity[self._links]
        return used_s

    def _sample(self) -> Generator[simpy.Event, None, None]:
        """Read the links' counters again and again."""
        assert self._recorder is not None
        carried = np.zeros(len(self._capacity))
        while True:
            carried[self._links] = self._wiring.sent_bytes()
            self._recorder.sample(self.env.now, carried)
            yield self.env.timeout(SAMPLE_S * self.env.scale)

    def close(self) -> None:
        """End the processes of hosts, and let the namespaces go."""
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
        self._processes = []
        self._stderr.close()
        self._wiring.close()


class LabCommunicator:
    """See `sim.network.interface.Communicator`."""

    def __init__(self, network: LabNetwork) -> None:
        self._network = network

    def announce(self, plan: Plan, placement: Sequence[Ints]) -> None:
        """Say that a plan will run, so that paths are planned for it and for what others announce.

        Only pipelines are announced: their edges stay the same.
        """
        for phase in plan.phases():
            if phase.pipelined:
                self._network.transport.announce(
                    np.concatenate([gpus[phase.src] for gpus in placement]),
                    np.concatenate([gpus[phase.dst] for gpus in placement]),
                    np.repeat(np.arange(len(placement)), len(phase.src)))

    def run(self, plan: Plan, placement: Sequence[Ints], local_s: Callable[[LocalCost], float],
            line: Timeline, label: str = "",
            protocol: Protocol = SIMPLE) -> Generator[simpy.Event, None, None]:
        """Run a plan on all hosts, and wait for the last of them."""
        del local_s
        assert all(phase.local is None for phase in plan.phases()), "lab_refusals refuses top-k"
        if not plan.stages:
            return
        network, env = self._network, self._network.env
        start_s = env.now
        limits = network.limits.begin(start_s) if network.limits else None
        event, lane = network.begin(plan, placement, protocol)
        late = env.timeout(PATIENCE_S * env.scale)
        yield event | late
        if not event.triggered:
            raise NetworkError(f"{label or plan.name} was not through after {PATIENCE_S} s by the "
                           "clock")
        network.end(lane)
        line.transfer(label or plan.name, start_s, limits(env.now) if limits else [])


def _window_of(plan: Plan, window: Window, channels: int) -> Window:
    """The window, with slots as small as the pieces into which NCCL cuts a tree's messages."""
    pieces = [-(-int(phase.bytes_per_edge.max()) // (channels * window.cut(phase, channels).pieces))
              for phase in plan.phases() if phase.feeds is not None and not phase.feeds.lag]
    return replace(window, slot_bytes=min([window.slot_bytes, *pieces]))
