"""The network of fidelity `lab`: hosts and switches in namespaces, plans run by real stacks.

Plans, placements and reports are those of the other fidelities. Cables, switches and stacks are the
kernel's and HARP's own; what a laboratory has no hardware for is paced (`sim.network.lab.pace`).
Rates are scaled down, and the clock with them, so that a step takes ``1 / scale`` times as long.
Latency of links is paced as well, since kernels may lack netem.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from harp.collectives.protocol import SIMPLE
from sim.network.lab.checks import check_site, stack_of
from sim.network.lab.messages import Done, Job, Part, Peers, Setup, read_message, send_message
from sim.network.lab.pace import EdgePace
from sim.network.lab.wiring import Wiring
from sim.network.link_state import LinkState
from sim.network.network import NetworkError
from sim.network.transport import Transport
from sim.network.wall_clock import WallClock

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Generator, Sequence

    import simpy
    from numpy.typing import NDArray

    from harp.collectives.ir import LocalCost
    from harp.collectives.plan import Plan
    from harp.collectives.protocol import Protocol
    from sim.cluster.cluster import Cluster
    from sim.network.network import Site
    from sim.records.results import LinkUse
    from sim.records.timeline import Timeline

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Edge = tuple[int, int, int]

DYNAMIC_PATHS = 8
"""Paths of a connection over a dynamic bond: enough to meet both ports, and to choose."""
MOST_LATE = 0.1
"""Share of the time that processes may come late, until the reader is told."""
PATIENCE_S = 300
"""By the wall clock: how long a collective may take."""


class LabNetwork:
    """See `sim.network.network.Network`."""

    def __init__(self, env: simpy.Environment, site: Site) -> None:
        assert isinstance(env, WallClock)
        check_site(site, env.scale)
        self.env, self.site = env, site
        self.notes: list[str] = []
        self.remembers = False
        self.waits_for = ""
        self._transport = Transport(site.cluster, site.stack, site.style, site.seed)
        self._links = LinkState(site.cluster.fabric)
        self._paces = _EdgePaces(self._transport, env.scale)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (close() ends it)
        self._told: list[set[Edge]] = [set() for _ in range(site.cluster.hosts)]
        self._running: dict[int, tuple[simpy.Event, set[int]]] = {}
        self._lanes: set[int] = set()
        self._numbers = count()
        cluster = site.cluster
        topology = cluster.topology
        mtu = topology.vpc.mtu if topology.vpc and topology.vpc.mtu else topology.fabric.mtu
        self._policies = [(site.style.bond or nic.bond) if nic.ports > 1 else "none"
                    for group in topology.hosts for _ in range(group.count)
                          for nic in group.nics for _ in range(nic.count)]
        self._wiring = Wiring(cluster.fabric, env.scale, mtu, self._policies, self._transport.seed)
        try:
            self._start_hosts()
        except BaseException:
            self.close()
            raise

    def _start_hosts(self) -> None:
        cluster, ways = self.site.cluster, self.site.style.sockets
        if "dynamic" in self._policies:
            ways = max(ways, DYNAMIC_PATHS)
        addresses = {gpu: self._wiring.address(int(cluster.endpoint[gpu]))
                     for gpu in range(cluster.gpus)}
        for host, space in enumerate(self._wiring.hosts):
            own = tuple(np.flatnonzero(cluster.host == host).tolist())
            process = space.start(sys.executable, "-m", "sim.network.lab.host", stdin=-1, stdout=-1,
                                  stderr=self._stderr, start_new_session=True)
            self._processes.append(process)
            assert process.stdin is not None
            send_message(process.stdin, Setup(stack_of(self.site), ways, SIMPLE.window, addresses,
                                              own))
        handles: dict[int, bytes] = {}
        for host in range(len(self._processes)):
            handles.update(self._answer(host).handles)
        for host, process in enumerate(self._processes):
            assert process.stdin is not None
            assert process.stdout is not None
            send_message(process.stdin, Peers(handles))
            self.env.watch(process.stdout, lambda host=host: self._hear(host))  # type: ignore[misc]

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
        done = self._answer(host)
        assert isinstance(done, Done)
        if done.error:
            raise NetworkError(f"host {host} of the lab could not run its part: {done.error}")
        if done.late > MOST_LATE and not self.notes:
            self.notes.append("The machine was too busy for the lab, whose times are too long; "
                              "a lower lab.scale, or a quieter machine, gives better ones.")
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
        edges = self._edges(plan, placement)
        host_of = self.site.cluster.host
        missing: set[int] = set()
        for host, process in enumerate(self._processes):
            parts = tuple(Part(channel, rank) for channel, gpus in enumerate(where)
                          for rank, gpu in enumerate(gpus) if host_of[gpu] == host)
            if not parts:
                continue
            missing.add(host)
            new = [edge for edge in edges if host in (host_of[edge[1]], host_of[edge[2]])
                   and edge not in self._told[host]]
            self._told[host].update(new)
            assert process.stdin is not None
            send_message(process.stdin, Job(number, lane, plan, protocol.window, where, parts,
                                            self._paces.of(new)))
        self._running[number] = event, missing
        return event, lane

    def _edges(self, plan: Plan, placement: Sequence[Ints]) -> list[Edge]:
        pairs = {pair for phase in plan.phases()
                 for pair in zip(phase.src.tolist(), phase.dst.tolist(), strict=True)}
        return sorted({(channel, int(gpus[src]), int(gpus[dst]))
                       for channel, gpus in enumerate(placement) for src, dst in pairs})

    def end(self, lane: int) -> None:
        """Give a lane back."""
        self._lanes.discard(lane)

    # ---- sim.network.network.Network

    def communicator(self) -> LabCommunicator:
        """Make one for a job."""
        return LabCommunicator(self)

    def scale(self, share: Floats) -> None:
        """Let each link send at this share of its rate; at 0 it drops all."""
        changed = np.flatnonzero(share != self._links.share)
        self._links.scale(share)
        self._wiring.shape(changed.tolist(), share)

    def avoid(self, links: Ints) -> None:
        """Change the routes of hosts and switches."""
        self._links.avoid(links)
        self._wiring.route(self._links.fabric)

    def abandon(self, links: Ints) -> None:
        """Nothing to do: a collective that nothing carries any more ends by `PATIENCE_S`."""

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
        """None: nothing is counted here."""
        del step_s
        return None

    def forget(self, before_s: float) -> None:
        """Nothing is kept."""

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
    """See `sim.network.network.Communicator`."""

    def __init__(self, network: LabNetwork) -> None:
        self._network = network

    def announce(self, plan: Plan, placement: Sequence[Ints]) -> None:
        """Nothing is planned here."""

    def run(self, plan: Plan, placement: Sequence[Ints], local_s: Callable[[LocalCost], float],
            line: Timeline, label: str = "",
            protocol: Protocol = SIMPLE) -> Generator[simpy.Event, None, None]:
        """Run a plan on all hosts, and wait for the last of them."""
        del local_s
        if any(phase.local is not None for phase in plan.phases()):
            raise NetworkError("--fidelity lab has no GPU that could select for a plan of top-k "
                               f"({plan.name}); leave LIGHT_TOPK_ALLREDUCE out")
        if not plan.stages:
            return
        network, env = self._network, self._network.env
        start_s = env.now
        event, lane = network.begin(plan, placement, protocol)
        late = env.timeout(PATIENCE_S * env.scale)
        yield event | late
        if not event.triggered:
            raise NetworkError(f"{label or plan.name} was not through after {PATIENCE_S} s by the "
                           "clock")
        network.end(lane)
        line.transfer(label or plan.name, start_s, [])


class _EdgePaces:
    """What paces each edge: all resources of the cluster but the fabric's links."""

    def __init__(self, transport: Transport, scale: float) -> None:
        self._transport, self._scale = transport, scale
        self._capacity = transport.cluster.capacities(transport.stack)
        self._hosts = _hosts_of_resources(transport.cluster)

    def of(self, edges: Sequence[Edge]) -> dict[Edge, EdgePace]:
        """Paces by channel and GPUs."""
        if not edges:
            return {}
        channel, src, dst = (np.array(column) for column in zip(*edges, strict=True))
        paths = self._transport.paths(src, dst, channel)
        made: dict[Edge, EdgePace] = {}
        for number, edge in enumerate(edges):
            rows = np.flatnonzero(paths.edge == number)
            uses = [(int(paths.resource[row]), float(
                paths.coefficient[row] / self._capacity[paths.resource[row]] / self._scale))
                for row in rows if int(paths.resource[row]) in self._hosts]
            near = self._transport.cluster.host[edge[1]]
            made[edge] = EdgePace(
                tuple(use for use in uses if self._hosts[use[0]] == near),
                tuple(use for use in uses if self._hosts[use[0]] != near),
                float(paths.message_s[number]) / self._scale,
                float(paths.alpha_s[number]) / self._scale,
                1.0 / float(paths.ceiling[number]) / self._scale)
        return made


def _hosts_of_resources(cluster: Cluster) -> dict[int, int]:
    """The host of every resource that is in one."""
    found: dict[int, int] = {}
    members = {"memory": cluster.memory, "switch_out": cluster.gpu_switch,
               "switch_in": cluster.gpu_switch}
    each_gpu = np.arange(cluster.gpus)
    for kind, block in cluster.blocks.items():
        if kind == "link":
            continue
        if len(block.capacity) == cluster.gpus:
            pairs = zip(block[each_gpu].tolist(), cluster.host.tolist(), strict=True)
        elif kind in members:
            parts = [*members[kind].tolist(), *cluster.nic_switch.tolist()] if (
                kind != "memory") else members[kind].tolist()
            hosts = cluster.host.tolist() * (len(parts) // cluster.gpus)
            pairs = zip(block[np.array(parts)].tolist(), hosts, strict=True)
        else:
            each = len(block.capacity) // cluster.hosts
            numbers = np.arange(len(block.capacity))
            pairs = zip(block[numbers].tolist(), (numbers // each).tolist(), strict=True)
        found.update(pairs)
    return found
