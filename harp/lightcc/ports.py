"""The engines that connect a rank to other ranks.

The thread that waits for pieces of collectives drives their engines. Between hosts HARP_PORT
chooses the engine's port:

    HARP_PORT    the engine's port
    auto         xdp where the card's driver works on the engine's memory (zero copy), else udp
    udp, xdp     that one; xdp with a copy, too
    tcp          kernel TCP, on all hosts alike
    mem          none: all ranks are on one host

Each rank chooses by itself: xdp and udp interoperate. Messages, which are few, need no queue of the
card: they take memory, udp or tcp, and the engine's own thread listens. The interface is that of
HARP_IFNAME, else the one that routes to MASTER_ADDR. HARP_FAULTS injects faults, for tests.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from harp.net import Engine, Port, nics
from harp.net.errors import OpenError

if TYPE_CHECKING:
    from collections.abc import Mapping

PORTS = ("auto", "udp", "tcp", "xdp", "mem")
QUIET_S = 0.002
"""The driving thread may be off its CPU for this long while other ranks have it."""
XDP_FRAMES = 8192
"""As in the plugin: rings of both directions, and the frames under way."""


def read_port(environment: Mapping[str, str]) -> str:
    """Read HARP_PORT. Raises ValueError for a port that collectives on the host do not have."""
    port = environment.get("HARP_PORT", "auto")
    if port not in PORTS:
        raise ValueError(f"HARP_PORT is {port!r}; allowed are {', '.join(PORTS)}")
    return port


def open_memory(environment: Mapping[str, str], name: str) -> Engine:
    """Open the engine for ranks of this host."""
    return _open_engine(Port("mem"), environment, name)


def open_network(environment: Mapping[str, str], name: str) -> Engine:
    """Open the engine for ranks of other hosts. Raises OpenError."""
    udp = find_place(environment)
    port = read_port(environment)
    if port == "xdp" or (port == "auto" and _is_card(udp.interface)):
        xdp = replace(udp, kind="xdp", interface=_find_interface(udp),
                      zero_copy_only=port == "auto")
        with contextlib.suppress(*[OpenError] if port == "auto" else []):
            return _open_engine(xdp, environment, name, frames=XDP_FRAMES)
    return _open_engine(_sockets(udp, port), environment, name)


def _sockets(udp: Port, port: str) -> Port:
    """The port of sockets that HARP_PORT asks for."""
    return replace(udp, kind="tcp") if port == "tcp" else udp


def open_p2p(environment: Mapping[str, str], name: str, *, mem: bool) -> Engine:
    """Open the engine for messages, to ranks of this host (``mem``) or of others."""
    port = Port("mem") if mem else _sockets(find_place(environment), read_port(environment))
    return _open_engine(port, environment, name, "thread")


def find_place(environment: Mapping[str, str]) -> Port:
    """Find the interface and address that lead to the other hosts, as a udp port."""
    interface = environment.get("HARP_IFNAME", "").removeprefix("=")  # as exact names for NCCL
    if interface:
        return Port("udp", interface)
    master = environment.get("MASTER_ADDR", "127.0.0.1")
    family, kind, protocol, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as asking:
        asking.connect(where)  # sends nothing; the kernel chooses the route
        address = str(asking.getsockname()[0])
    return Port("udp", nics.interface_of(address), address)


def _find_interface(port: Port) -> str:
    if port.interface is None:
        raise OpenError(f"no interface has {port.address} as its first address; HARP_IFNAME names "
                        "the one for xdp")
    return port.interface


def _is_card(interface: str | None) -> bool:
    """Only a real card's driver can do without a copy."""
    return interface is not None and (nics.SYS / interface / "device").exists()


def _open_engine(port: Port, environment: Mapping[str, str], name: str, progress: str = "inline",
                 frames: int = 4096) -> Engine:
    port = replace(port, faults=environment.get("HARP_FAULTS") or None)
    return Engine(port, name=f"{name} {port.kind}", progress=progress, frames=frames,
                  quiet_after=QUIET_S)
