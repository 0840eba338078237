"""``harp decode``: list the HARP frames of a capture, one line each, and a summary.

With the secret (or a handle, which holds it) every tag is checked too. Keys are derived from the
handshake, so tags stay unknown for connections without a handshake in the capture. CRCs need no
secret.
"""

from __future__ import annotations

import json
import logging
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harp._cnet import lib
from harp.cli.capture import problem_of
from harp.cli.io import InputError, hex_bytes, reading
from harp.net.handle import BYTES as HANDLE_BYTES
from harp.net.handle import Handle
from harp.wire_sums import End, header_tag, key_accept, key_down, key_hello, key_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scapy.packet import Packet

HEADER_BYTES, TAGGED_BYTES = 44, 36
NUMBERED = {"DATA", "ACK", "PROBE"}


@dataclass
class Frame:
    """One frame of the capture."""

    time_s: float
    source: str
    destination: str
    layer: Packet
    tag: str
    """ok, BAD or ? (no key)."""
    crc: str
    """ok, BAD or ? (cut off by the capture)."""

    @property
    def sound(self) -> bool:
        """Whether neither tag nor CRC is known to be wrong."""
        return "BAD" not in {self.tag, self.crc}


class Keys:
    """Keys of one secret, for connections with a handshake in the capture."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret
        self._connecting: dict[int, tuple[End, int, int]] = {}
        self._keys: dict[int, bytes] = {}
        self._begin: dict[tuple[int, bool], int] = {}
        self._numbers: dict[tuple[int, bool, int], int] = {}

    def verdict(self, frame: bytes, layer: Packet) -> str:
        """Judge a frame's tag; a FIRST or ACCEPT that holds teaches keys."""
        if self._secret is None:
            return "?"
        key = self._key(layer)
        if key is None:
            return "?"
        number = self._number(layer)
        holds = header_tag(key, frame[:TAGGED_BYTES], number >> 32 & 0xFFFFFF) == layer.tag
        if holds:
            self._learn(layer)
        if holds and _type(layer) in NUMBERED:
            self._numbers[self._way(layer)] = number
        return "ok" if holds else "BAD"

    @staticmethod
    def _way(layer: Packet) -> tuple[int, bool, int]:
        return layer.connection, _type(layer) == "ACK", layer.path

    def _number(self, layer: Packet) -> int:
        """Extend a number from the lower 32 bits that a frame carries."""
        if _type(layer) not in NUMBERED:
            return 0
        way = self._way(layer)
        about = self._numbers.get(way, self._begin[way[:2]])
        number: int = about + (layer.packet - about + 2**31) % 2**32 - 2**31
        return number

    def _key(self, layer: Packet) -> bytes | None:
        assert self._secret is not None
        kind = _type(layer)
        if kind == "FIRST":
            return key_hello(self._secret, layer.connection)
        if kind in {"COOKIE", "ACCEPT", "VERSION"}:
            known = self._connecting.get(layer.connection)
            if known is None:
                return None
            end, listener, _ = known
            return (key_accept(self._secret, listener, end) if kind == "ACCEPT"
                    else key_hello(self._secret, listener))
        return self._keys.get(layer.connection)

    def _learn(self, layer: Packet) -> None:
        from harp.wire import Parameters

        if Parameters not in layer:
            return
        assert self._secret is not None
        said = layer[Parameters]
        end = End(said.connection, said.epoch, said.nonce)
        if _type(layer) == "FIRST":
            self._connecting[end.connection] = (end, layer.connection, said.first)
            return
        connecting, _, first = self._connecting[layer.connection]
        self._keys[end.connection] = key_up(self._secret, connecting, end)
        self._keys[connecting.connection] = key_down(self._secret, connecting, end)
        for ack in (False, True):  # of the packets that its receiver gets, or has sent
            self._begin[end.connection, ack] = said.first if ack else first
            self._begin[connecting.connection, ack] = first if ack else said.first


@dataclass
class Summary:
    """Totals of a capture."""

    types: Counter[str] = field(default_factory=Counter)
    tags: Counter[str] = field(default_factory=Counter)
    crcs: Counter[str] = field(default_factory=Counter)
    connections: set[int] = field(default_factory=set)
    other: int = 0
    """Packets that are none of HARP's."""
    payload_bytes: int = 0
    again: int = 0
    """Chunks that had been seen before."""
    first_s: float = 0.0
    last_s: float = 0.0
    _chunks: set[tuple[int, int, int]] = field(default_factory=set)

    def add(self, frame: Frame) -> None:
        """Count a frame."""
        layer, kind = frame.layer, _type(frame.layer)
        if not self.types:
            self.first_s = frame.time_s
        self.last_s = frame.time_s
        self.types[kind] += 1
        self.tags[frame.tag] += 1
        self.crcs[frame.crc] += 1
        self.connections.add(layer.connection)
        if kind == "DATA":
            self.payload_bytes += layer.length
            chunk = (layer.connection, layer.message, layer.offset)
            self.again += chunk in self._chunks
            self._chunks.add(chunk)

    def lines(self) -> Iterator[str]:
        """Write it for people."""
        frames = sum(self.types.values())
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.types.most_common())
        yield f"{frames} frames in {self.last_s - self.first_s:.6f} s: {kinds or 'none'}"
        yield (f"{len(self.connections)} connection ids, {self.payload_bytes} bytes of payload, "
               f"{self.again} chunks seen again, {self.other} packets that are not HARP's")
        for name, counts in (("tags", self.tags), ("CRCs", self.crcs)):
            yield f"{name}: {counts['ok']} ok, {counts['BAD']} BAD, {counts['?']} unknown"

    def document(self) -> dict[str, Any]:
        """Give it for programs."""
        return {"frames": dict(self.types), "connections": len(self.connections),
                "payload_bytes": self.payload_bytes, "again": self.again, "other": self.other,
                "seconds": self.last_s - self.first_s, "tags": dict(self.tags),
                "crcs": dict(self.crcs)}


def _type(layer: Packet) -> str:
    from harp.wire import TYPES

    return TYPES.get(layer.type, f"type {layer.type}")


def frames(file: Path, secret: bytes | None, port: int | None,
           on_other: Callable[[], None]) -> Iterator[Frame]:
    """Yield the frames of a capture in order; call ``on_other`` for each other packet."""
    import scapy.layers.inet6  # (and all below: the reader knows what has been loaded)
    import scapy.layers.l2  # noqa: F401
    from scapy.error import Scapy_Exception
    from scapy.utils import PcapReader

    keys = Keys(secret)
    start: float | None = None
    with file.open("rb") as opened:
        try:
            reader = PcapReader(opened)  # type: ignore[arg-type]  # it takes both
        except (Scapy_Exception, EOFError):
            return  # what `problem_of` finds
        for packet in reader:
            start = float(packet.time) if start is None else start
            found = False
            for frame in _of_packet(packet, keys, port, start):
                found = True
                yield frame
            if not found:
                on_other()


def _of_packet(packet: Packet, keys: Keys, port: int | None, start: float) -> Iterator[Frame]:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6

    if UDP not in packet:
        return
    udp = packet[UDP]
    if port is not None and port not in {udp.sport, udp.dport}:
        return
    ip = packet.getlayer(IP) or packet.getlayer(IPv6)
    if ip is None:
        return
    form = "[{}]:{}" if isinstance(ip, IPv6) else "{}:{}"
    payload, length = bytes(udp.payload), max((udp.len or 8) - 8, 0)
    # What scapy took for the next layer is HARP's; what pads a short Ethernet frame is not.
    for data, whole in _split(payload[:length] if length else payload, length):
        yield _frame(data, keys, float(packet.time) - start, form.format(ip.src, udp.sport),
                     form.format(ip.dst, udp.dport), whole=whole)


def _split(payload: bytes, length: int) -> Iterator[tuple[bytes, bool]]:
    """Frames of a datagram, or of several that the kernel keeps as one (GSO, GRO)."""
    at = 0
    while len(payload) - at >= HEADER_BYTES and _plausible(payload[at:at + HEADER_BYTES]):
        size = HEADER_BYTES + int.from_bytes(payload[at + 14:at + 16], "little")
        if at + size > max(length, len(payload)):
            return
        yield payload[at:at + size], at + size <= len(payload)
        at += size


def _plausible(header: bytes) -> bool:
    from harp.wire import VERSION

    version, kind = header[0], header[1]
    return 1 <= kind <= 8 and (version == VERSION or kind in {1, 8})


def _frame(data: bytes, keys: Keys, time_s: float, source: str, destination: str, *,
           whole: bool) -> Frame:
    from harp.wire import Harp

    layer = Harp(data)
    crc = "?"
    if whole:
        crc = "ok" if lib.harp_crc32c(data[HEADER_BYTES:], len(data) - HEADER_BYTES) == layer.crc \
            else "BAD"
    return Frame(time_s, source, destination, layer, keys.verdict(data, layer), crc)


def details(layer: Packet) -> str:
    """Describe a frame's content in a few words."""
    kind = _type(layer)
    if kind == "DATA":
        end = layer.offset + layer.length
        cut = f", in fragments, {layer.flags} to a chunk" if layer.flags else ""
        return (f"packet {layer.packet} message {layer.message} bytes {layer.offset}..{end} "
                f"of {layer.size}{cut}")
    if kind == "PROBE":
        return f"packet {layer.packet}, {layer.length} bytes of padding"
    if kind == "ACK":
        return _ack(layer)
    says: dict[str, Callable[[Packet], str]] = {
        "Parameters": _parameters, "Close": _close, "Versions": _versions}
    body = layer.payload
    return says[type(body).__name__](body) if type(body).__name__ in says else ""


def _ack(layer: Packet) -> str:
    ack = layer.payload
    if type(ack).__name__ != "Ack":
        return ""
    credit = f"frames {ack.frames}" if ack.frames else f"bytes {ack.bytes}"
    marked = f", {ack.marked} marked" if ack.marked else ""
    before = f"{len(ack.arrived(layer.packet))} of {ack.bits} before it"
    return (f"largest {layer.packet}, {before}; credit: "
            f"message {ack.messages} {credit}{marked}")


def _parameters(said: Packet) -> str:
    way = f"streamed, {said.frames} frames" if said.flags & 1 else "posted"
    cookie = ", with cookie" if any(said.cookie) else ""
    also = "".join(f", also at {ip} port {port}" for ip, port in said.known())
    return (f"I am {said.connection:016x}, segment {said.segment}, {said.paths} paths, "
            f"{way}{cookie}{also}")


def _close(close: Packet) -> str:
    from harp.wire import REASONS

    text = f": {close.text.decode(errors='replace')!r}" if close.text else ""
    return f"reason {close.reason}, {REASONS.get(close.reason, 'unknown')}{text}"


def _versions(said: Packet) -> str:
    return f"speaks versions {said.lowest} to {said.highest}"


def line(frame: Frame) -> str:
    """Write a frame."""
    layer = frame.layer
    return (f"{frame.time_s:12.6f} {frame.source} > {frame.destination} {_type(layer):<7} "
            f"path {layer.path} to {layer.connection:016x} {details(layer)} "
            f"[tag {frame.tag}, crc {frame.crc}]").replace("  [", " [")


def _is_kept(path: Path) -> bool:
    """Whether it can be read again; what is neither file nor pipe fails by itself."""
    mode = path.stat().st_mode
    return not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode))


def _document(frame: Frame) -> dict[str, Any]:
    layer = frame.layer
    fields = ("version", "path", "flags", "epoch", "length", "packet", "message", "offset", "size")
    return {"time_s": frame.time_s, "source": frame.source, "destination": frame.destination,
            "type": _type(layer), "connection": f"{layer.connection:016x}",
            **{name: getattr(layer, name) for name in fields}, "says": details(layer),
            "tag": frame.tag, "crc": frame.crc}


def parse_secret(text: str | None) -> bytes | None:
    """Read 16 bytes, or a handle that holds them, in hexadecimal."""
    if text is None:
        return None
    try:
        data = hex_bytes(text)
        if len(data) == HANDLE_BYTES:
            return Handle(data).secret
    except ValueError as error:
        raise click.UsageError(f"--secret: {error}") from error
    if len(data) != 16:
        raise click.UsageError(f"--secret: a secret has 16 bytes and a handle {HANDLE_BYTES}, in "
                               f"hexadecimal; this one has {len(data)}")
    return data


@click.command()
@click.argument("capture", type=click.Path(path_type=Path), metavar="FILE.pcap")
@click.option("--secret", metavar="HEX", help="Secret or handle, to check tags.")
@click.option("--port", type=click.IntRange(1, 65535),
              help="Only frames from or to this UDP port.  [all that look like HARP]")
@click.option("--bad", is_flag=True, help="Only frames with a wrong tag or CRC.")
@click.option("--summary", is_flag=True, help="Print only the summary.")
@click.option("--json", "as_json", is_flag=True, help="Print lines of JSON.")
def decode(capture: Path, *, secret: str | None, port: int | None, bad: bool, summary: bool,
           as_json: bool) -> None:
    """List the HARP frames of a packet capture, one line each, and a summary.

    Exit code 1 if a tag or a CRC is wrong, 2 if the capture is not whole: then what it has, if
    anything, is listed all the same.
    """
    logging.getLogger("scapy").setLevel(logging.ERROR)
    known = parse_secret(secret)
    if not reading(capture, _is_kept):
        raise InputError(f"{capture} is a pipe or a device, and a capture is read twice: copy it "
                         "to a file")
    problem = reading(capture, problem_of)
    total = Summary()

    def other() -> None:
        total.other += 1

    try:
        for frame in frames(capture, known, port, other):
            total.add(frame)
            if not summary and not (bad and frame.sound):
                click.echo(json.dumps(_document(frame)) if as_json else line(frame))
    except Exception:
        if not problem:  # else scapy stumbled over what is reported below
            raise
    if not problem or total.types or total.other:
        click.echo(json.dumps({"summary": total.document()}) if as_json
                   else "\n".join(total.lines()))
    if problem:
        raise InputError(f"{capture}: {problem}")
    if total.tags["BAD"] or total.crcs["BAD"]:
        click.get_current_context().exit(1)
