"""Start two ranks that seem to be on two hosts, over one network, and judge how they ended.

Each has its own NCCL_HOSTID, so that NCCL uses the network between them though they share a GPU.
With root's rights each also has a network namespace of its own, joined by a veth pair; else both
use loopback.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lab.namespace import why_unusable
from lab.veth import veth_pair

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# One GPU for both: no memory that is shared between hosts, and few enough blocks for two kernels.
ONE_GPU = {"NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "4",
           "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}
NOTICED_S = 40
"""HARP_TIMEOUT, after which a peer that is gone is an error, and some."""
OURS = ("NCCL_", "HARP_", "TORCH_", "GLOO_", "MASTER_")


@dataclass(frozen=True)
class Network:
    """The transport of a job: settings, lines that must be in the log, and what it needs."""

    name: str
    settings: dict[str, str]
    says: tuple[str, ...] = ()
    needs_root: bool = False
    backend: str = "nccl"
    needs_harp: bool = False
    """Whether ranks import harp."""


REHEARSAL = Network("gloo", {}, backend="gloo")
LIGHTCC = Network("lightcc", {"HARP_CONF_FILE": "/dev/null"}, backend="lightcc", needs_harp=True)
"""Tensors on the GPU, staged through pinned memory."""
HOOK = Network("hook", {**LIGHTCC.settings, "NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"},
               backend="nccl+hook", needs_harp=True)
"""DDP's gradients by LightCC's hook: NCCL within a host, LightCC between."""
HOOK_REHEARSAL = Network("gloo-hook", LIGHTCC.settings, backend="gloo+hook", needs_harp=True)


def networks(plugin: Path) -> list[Network]:
    """NCCL's own transport, to which the others are held, HARP's ports, and LightCC."""
    harp = {"NCCL_NET_PLUGIN": str(plugin), "NCCL_NET": "HARP", "HARP_CONF_FILE": "/dev/null",
            "HARP_STATS": "1"}
    return [
        Network("socket", {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"},
                ("Using network Socket",)),
        Network("harp-auto", harp, ("Using network HARP", "data over kernel TCP, 1 path")),
        Network("harp-tcp", {**harp, "HARP_PORT": "tcp", "HARP_SOCKETS": "4"},
                ("Using network HARP", "data over kernel TCP, 4 paths")),
        Network("harp-udp", {**harp, "HARP_PORT": "udp"}, ("Using network HARP", ": udp: ")),
        Network("harp-udp-inline", {**harp, "HARP_PORT": "udp", "HARP_PROGRESS": "inline"},
                ("Using network HARP", ": udp: ")),
        Network("harp-xdp", {**harp, "HARP_PORT": "xdp"}, ("Using network HARP", ": xdp: "),
                needs_root=True),
        LIGHTCC, HOOK,
    ]


@dataclass
class Ended:
    """How a job ended: statuses (None: stopped for taking too long), logs, what ranks found."""

    network: Network
    codes: list[int | None]
    logs: list[str]
    found: list[dict[str, Any]] = field(default_factory=list)

    def problems(self, reference: Ended | None = None) -> list[str]:
        """Say what is wrong, a sentence each; none if all is well."""
        name = self.network.name
        wrong = [f"{name}: rank {rank} "
                 + ("did not end in time" if code is None else f"ended with status {code}")
                 for rank, code in enumerate(self.codes) if code != 0]
        wrong += [f'{name}: rank {rank} does not say "{line}"' for rank, log in
                  enumerate(self.logs) for line in self.network.says if line not in log]
        if not wrong and reference is not None:
            wrong += [f"{name}: rank {rank}'s losses differ from those over "
                      f"{reference.network.name}, first in step {step}"
                      for rank, (ours, theirs) in enumerate(zip(self.found, reference.found,
                                                                strict=True))
                      for step in differing(ours["losses"], theirs["losses"])[:1]]
        return wrong


def differing(ours: Sequence[str], theirs: Sequence[str]) -> list[int]:
    """Name the steps whose losses are not the same to the last bit."""
    if len(ours) != len(theirs):
        return [min(len(ours), len(theirs))]
    return [step for step, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]


@dataclass(frozen=True)
class Place:
    """Where a rank runs: how its command begins, and the interface that it uses."""

    before: tuple[str, ...]
    interface: str


@contextmanager
def places() -> Iterator[tuple[Place, Place]]:
    """Two namespaces joined by a veth pair, or loopback twice."""
    if why_unusable():
        alone = Place((), "lo")
        yield alone, alone
        return
    with veth_pair() as ends:
        first, second = (Place(tuple(end.space.command()), end.device) for end in ends)
        yield first, second


def run(network: Network, program: Sequence[str | Path], folder: Path, *,
        timeout_s: float = 300) -> Ended:
    """Run two ranks of ``program`` to their end; it gets RANK STORE OUT and --backend."""
    base = {"OMP_NUM_THREADS": "1",  # as torchrun does; threads of both ranks would spin for cores
            **{name: value for name, value in os.environ.items() if not name.startswith(OURS)}}
    folder.mkdir(parents=True)
    with places() as both, ExitStack() as stack:
        processes = []
        for rank, place in enumerate(both):
            own = {"NCCL_HOSTID": f"harp-host-{rank}", "NCCL_SOCKET_IFNAME": f"={place.interface}",
                   "GLOO_SOCKET_IFNAME": place.interface, "HARP_IFNAME": f"={place.interface}"}
            log = stack.enter_context((folder / f"{rank}.log").open("w"))
            process = subprocess.Popen(
                [*place.before, *map(str, program), str(rank), str(folder / "store"),
                 str(folder / f"{rank}.json"), "--backend", network.backend],
                env={**base, **ONE_GPU, **own, **network.settings}, stdout=log, stderr=log)
            stack.callback(end, process)
            processes.append(process)
        codes = wait(processes, timeout_s)
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("?.json"))]
    return Ended(network, codes, [(folder / f"{rank}.log").read_text(errors="replace")
                                  for rank in (0, 1)], found)


def wait(processes: Sequence[subprocess.Popen[Any]], timeout_s: float) -> list[int | None]:
    """Wait for all; once one has failed, the others get as long as HARP needs to notice."""
    deadline = time.monotonic() + timeout_s
    running = {os.pidfd_open(process.pid): process for process in processes}
    ends = select.poll()
    for fd in running:
        ends.register(fd, select.POLLIN)
    while running and (ended := ends.poll(1000 * max(0.0, deadline - time.monotonic()))):
        for fd, _ in ended:
            if running[fd].wait():
                deadline = min(deadline, time.monotonic() + NOTICED_S)
            ends.unregister(fd)
            os.close(fd)
            del running[fd]
    for fd in running:
        os.close(fd)
    return [process.returncode for process in processes]


def end(process: subprocess.Popen[Any]) -> None:
    """Leave no process behind."""
    process.kill()
    process.wait()
