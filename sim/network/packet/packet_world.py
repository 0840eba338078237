"""The packet network (C, ``packet.h``) for Python: links, hosts, channels and runs by number."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.network.packet import assumptions
from sim.network.packet._packet import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from harp.routing.ecmp import NextHops

NO_LIMIT = 2**64 - 1
"""Nanoseconds that never come."""
NIC = -1
"""Instead of a switch, at an end of a link."""


class End(NamedTuple):
    """One end of a connection: the process that drives it, and the chains of its payload."""

    process: int
    send_chain: int
    receive_chain: int


CONGESTION = ("cubic", "dctcp", "bbr")
"""Congestion control of kernel TCP (enum packet_congestion)."""


class Tcp(NamedTuple):
    """Sockets of kernel TCP."""

    mss: int
    """Payload of a full segment."""
    headers: int
    """Bytes that a link carries with it beside."""
    congestion: str = "cubic"
    """One of `CONGESTION`."""


class Stage(NamedTuple):
    """Edges of one stage as arrays of one length, and which edge waits for which."""

    src: ArrayLike
    dst: ArrayLike
    channel: ArrayLike
    nbytes: ArrayLike
    pieces: ArrayLike
    lag: int = 0
    source: ArrayLike = ()
    """Pairs of edges: ``source[i]`` feeds ``target[i]``."""
    target: ArrayLike = ()
    messages: float = 1.0
    """Messages of a piece for the processes at both ends."""


class LinkFaults(NamedTuple):
    """Faults of a link's packets."""

    drop: float = 0.0
    """Share that is lost."""
    late: float = 0.0
    """Share that comes ``late_s`` later, overtaken by others."""
    late_s: float = 0.0
    longest_bytes: int = 0
    """With all headers; what is longer is lost. 0: nothing is too long."""


class LinkCounts(NamedTuple):
    """Counters of a link."""

    packets: int
    bytes: int
    dropped: int
    marked: int
    waiting_bytes: int
    most_bytes: int
    """The most that waited at once."""
    pauses: int
    """Pauses that its sender heard of."""
    paused_ns: int
    """Time of the pauses that are over."""


class PathCounts(NamedTuple):
    """A session's counters of a path, as in an engine's statistics."""

    alive: int
    mtu_fails: int
    fragments: int
    frame_bytes: int
    window_bytes: int
    bytes_in_flight: int
    smoothed_ns: int
    sent: int
    lost: int
    spurious: int
    died: int
    due: int
    arrived: int
    bad_payloads: int
    starved_ns: int
    """Of the session."""


class Counts(NamedTuple):
    """Counters of the world."""

    events: int
    data: int
    """Frames with payload that arrived at hosts."""
    again: int
    """Chunks that sessions sent more than once."""
    lost: int
    """Packets that links or policers dropped."""
    policed: int
    """Of these, by policers."""


class PauseLoopError(RuntimeError):
    """Links pause one another, for ever."""

    def __init__(self, links: list[int]) -> None:
        super().__init__(f"links {links} pause one another")
        self.links = links


class ConnectionEndedError(RuntimeError):
    """A connection ended by itself; the message says why."""


def _array(values: ArrayLike, kind: str, dtype: Any) -> Any:
    return ffi.from_buffer(kind, np.ascontiguousarray(values, dtype), require_writable=False)


def _ints(values: ArrayLike) -> Any:
    return _array(values, "int32_t[]", np.int32)


class World:
    """A network in virtual time; see the C manual.

    Args:
        seed: of all chance.
        segment: payload of a full frame, a multiple of 128.
        overhead: bytes that a link carries with each frame beside its UDP payload.
        slots: pieces that a channel holds, at each end.
        piece_bytes: of the longest piece.
        unit_bytes: in which pieces move within a host.
        idle_connections: that stay open though nothing moves on them.
    """

    def __init__(self, *, seed: int, segment: int, overhead: int, slots: int,
                 piece_bytes: int, unit_bytes: int,
                 idle_connections: int = assumptions.IDLE_CONNECTIONS) -> None:
        config = ffi.new("struct packet_config *", {
            "seed": seed % 2**64, "segment": segment, "overhead": overhead,
            "slots": slots, "piece_bytes": piece_bytes,
            "unit_bytes": unit_bytes, "idle_connections": idle_connections})
        self._world = ffi.gc(lib.packet_new(config), lib.packet_free)

    def add_link(self, bits_per_s: float, latency_s: float, *, source: int = NIC,
                 target: int = NIC, mark_bytes: int = 0) -> int:
        """Add a directed link from one switch to another, or from or to a `NIC`."""
        return int(lib.packet_add_link(self._world, source, target, bits_per_s,
                                       round(latency_s * 1e9), mark_bytes))

    def share_buffers(self, switches: int, nbytes: int, alpha: float) -> None:
        """Let the ports of each switch share a buffer, a port ``alpha`` times what is free."""
        lib.packet_share_buffers(self._world, switches, nbytes, alpha)

    def put_acks_first(self) -> None:
        """Let ports of switches send frames without payload first, as those of NICs do."""
        lib.packet_put_acks_first(self._world)

    def set_pfc(self, headroom_bytes: ArrayLike, xoff_bytes: int, xon_offset_bytes: int) -> None:
        """Let switches pause links, each with a headroom; 0: XOFF by what is free. See C."""
        lib.packet_set_pfc(self._world, _array(headroom_bytes, "uint64_t[]", np.uint64),
                           xoff_bytes, xon_offset_bytes)

    def set_rate(self, link: int, bits_per_s: float) -> None:
        """Change a link's rate; at 0 it is down, and loses what it has and gets."""
        lib.packet_set_rate(self._world, link, bits_per_s)

    def set_faults(self, link: int, faults: LinkFaults) -> None:
        """Let a link lose or delay what crosses it from now on."""
        lib.packet_set_faults(self._world, link, ffi.new("struct packet_link_faults *", {
            "drop_ppm": round(faults.drop * 1e6), "late_ppm": round(faults.late * 1e6),
            "late_ns": round(faults.late_s * 1e9), "longest_bytes": faults.longest_bytes}))

    def add_server(self) -> int:
        """Add something that packets take turns on."""
        return int(lib.packet_add_server(self._world))

    def add_bucket(self, s_per_byte: float, burst: float, nbytes: float) -> int:
        """Add a token bucket: tokens come at a pace, and while it has some it is faster by 1/burst.

        Its chains name its pace, too, which counts for nothing there.
        """
        return int(lib.packet_add_bucket(self._world, s_per_byte * 1e12, burst, round(nbytes)))

    def add_policer(self, s_per_byte: float, nbytes: float) -> int:
        """Add a token bucket that drops what finds no tokens in it; see `add_bucket`."""
        return int(lib.packet_add_policer(self._world, s_per_byte * 1e12, round(nbytes)))

    def add_chain(self, servers: Sequence[int], s_per_byte: Sequence[float]) -> int:
        """Add servers to pass in this order, with the time that each takes for a byte."""
        return int(lib.packet_add_chain(
            self._world, len(servers), _ints(servers),
            _array(np.asarray(s_per_byte, np.float64) * 1e12, "double[]", np.float64)))

    def set_pace(self, chain: int, place: int, s_per_byte: float) -> None:
        """Change the time that a server of a chain takes for a byte."""
        lib.packet_set_pace(self._world, chain, place, s_per_byte * 1e12)

    def add_route(self, links: ArrayLike) -> int:
        """Add links to cross in this order."""
        return int(lib.packet_add_route(self._world, np.size(links), _ints(links)))

    def add_spray(self, link: int, endpoint: int) -> int:
        """Add a route that leaves by ``link`` and then takes any shortest path."""
        return int(lib.packet_add_spray(self._world, link, endpoint))

    def set_paths(self, hops: NextHops) -> None:
        """Say which links are on shortest paths, for routes of `add_spray`."""
        endpoints, ports = hops.down.shape
        lib.packet_set_paths(self._world, (len(hops.ptr) - 1) // hops.switches, endpoints, ports,
                             _ints(hops.group), _ints(hops.ptr), _ints(hops.links),
                             _ints(hops.down))

    def add_process(self, ring_frames: int = 1024, thread: int = -1) -> int:
        """Add a process that drives sessions, with at most ``ring_frames`` in the NIC at once.

        Server ``thread`` handles its messages; -1: they cost no server.
        """
        return int(lib.packet_add_process(self._world, ring_frames, thread))

    def add_connection(self, source: End, target: End, there: Sequence[int], back: Sequence[int],
                       *, delay_s: float = 0.0, message_s: float = 0.0) -> int:
        """Add a channel between hosts, with routes for the data and the answers of each path."""
        return int(lib.packet_add_connection(
            self._world, ffi.new("struct packet_end *", source),
            ffi.new("struct packet_end *", target), len(there), _ints(there), _ints(back),
            round(delay_s * 1e9), round(message_s * 1e9)))

    def add_tcp(self, source: End, target: End, there: Sequence[int], back: Sequence[int],
                tcp: Tcp, *, delay_s: float = 0.0, message_s: float = 0.0) -> int:
        """Add a channel over kernel TCP, with a socket for each route."""
        return int(lib.packet_add_tcp(
            self._world, ffi.new("struct packet_end *", source),
            ffi.new("struct packet_end *", target), ffi.new("struct packet_tcp *", {
                "congestion": CONGESTION.index(tcp.congestion), "sockets": len(there),
                "mss": tcp.mss, "headers": tcp.headers}), _ints(there), _ints(back),
            round(delay_s * 1e9), round(message_s * 1e9)))

    def set_routes(self, channel: int, there: Sequence[int], back: Sequence[int]) -> None:
        """Put a connection's paths on other routes."""
        lib.packet_set_routes(self._world, channel, _ints(there), _ints(back))

    def close(self, channel: int) -> None:
        """Close a connection that carries nothing; the next piece opens it again."""
        lib.packet_close(self._world, channel)

    def add_pipe(self, chain: int, delay_s: float = 0.0) -> int:
        """Add a channel within a host."""
        return int(lib.packet_add_pipe(self._world, chain, round(delay_s * 1e9)))

    def add_run(self, ranks: int, stages: int) -> int:
        """Begin a collective now."""
        return int(lib.packet_add_run(self._world, ranks, stages))

    def load(self, run: int, stage: Stage) -> None:
        """Give a run its next stage."""
        lib.packet_load(
            self._world, run, np.size(stage.src), _ints(stage.src), _ints(stage.dst),
            _ints(stage.channel), _array(stage.nbytes, "int64_t[]", np.int64),
            _ints(stage.pieces), stage.messages, stage.lag, np.size(stage.source),
            _ints(stage.source), _ints(stage.target))

    def capture(self, link: int, path: str, most_bytes: int) -> None:
        """Write what leaves by ``link`` into a pcap file from now on. Raises OSError."""
        if lib.packet_capture(self._world, link, path.encode(), most_bytes) < 0:
            raise OSError(ffi.errno, os.strerror(ffi.errno), path)

    def end_capture(self) -> bool:
        """Close the file; whether all frames found room in it. Raises OSError."""
        code = int(lib.packet_end_capture(self._world))
        if code < 0:
            raise OSError(ffi.errno, os.strerror(ffi.errno))
        return not code

    def name_path(self, channel: int, path: int, ips: tuple[int, int],
                  ports: tuple[int, int]) -> None:
        """Say what addresses and UDP ports a capture shows of a connection's path."""
        lib.packet_name_path(self._world, channel, path, *ips, *ports)

    def advance(self, until_ns: int = NO_LIMIT) -> tuple[str, int]:
        """Let time pass up to ``until_ns`` (inclusive), or until something is to be done.

        Returns:
            ``("time", -1)``, ``("done", run)``, or ``("load", run)``.

        Raises:
            ConnectionEndedError: a connection ended by itself.
            PauseLoopError: nothing will ever move again on some links.

        """
        stop = lib.packet_advance(self._world, until_ns)
        if stop == lib.PACKET_CLOSED:
            raise ConnectionEndedError(ffi.string(lib.packet_why(self._world)).decode())
        if stop == lib.PACKET_LOOPED:
            raise PauseLoopError(self._loop())
        which = int(lib.packet_which(self._world))
        return {lib.PACKET_DONE: ("done", which), lib.PACKET_LOAD: ("load", which)}.get(
            stop, ("time", -1))

    def _loop(self) -> list[int]:
        links = ffi.new("int32_t[]", lib.packet_loop(self._world, ffi.NULL, 0))
        lib.packet_loop(self._world, links, len(links))
        return list(links)

    @property
    def now_ns(self) -> int:
        """The clock."""
        return int(lib.packet_now_ns(self._world))

    @property
    def next_ns(self) -> int:
        """Time of the next event; `NO_LIMIT` if there is none."""
        return int(lib.packet_next_ns(self._world))

    def link_counts(self, link: int) -> LinkCounts:
        """Count what a link has done."""
        counts = ffi.new("struct packet_link_counts *")
        lib.packet_link_counts(self._world, link, counts)
        return LinkCounts(*(getattr(counts, name) for name in LinkCounts._fields))

    def carried(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Bytes that each link has sent, and bytes of payload that each server has worked on."""
        by_link, by_server = (np.zeros(count(self._world), np.uint64)
                              for count in (lib.packet_links, lib.packet_servers))
        lib.packet_carried(self._world, ffi.from_buffer("uint64_t[]", by_link),
                           ffi.from_buffer("uint64_t[]", by_server))
        return by_link, by_server

    def channel_frames(self, channel: int) -> int:
        """Count the frames of a connection with payload that was new to its receiver."""
        return int(lib.packet_channel_frames(self._world, channel))

    def path_counts(self, channel: int, end: int, path: int) -> PathCounts | None:
        """Count for one end of a connection, 0 sends; None if it has no session now."""
        counts = ffi.new("struct packet_path_counts *")
        if not lib.packet_path(self._world, channel, end, path, counts):
            return None
        return PathCounts(*(getattr(counts, name) for name in PathCounts._fields))

    def counts(self) -> Counts:
        """Count what the world has done."""
        counts = ffi.new("struct packet_counts *")
        lib.packet_counts(self._world, counts)
        return Counts(*(getattr(counts, name) for name in Counts._fields))
