"""The HARP wire protocol in Python, after docs/inside/wire.md: scapy layers, checksums, keys.

For captures, tests and tools; the stack itself runs the C of ``cnet``. Nothing here was taken from
that code: the tests compare the two, so that a misread constant is found.

>>> frame = seal(Harp(type="DATA", connection=7, size=5) / Raw(b"hello"), key=bytes(16))
>>> holds(frame, key=bytes(16))
True
>>> Harp(frame)[Raw].load
b'hello'

``Harp`` over UDP: ``bind(port)`` makes scapy dissect what comes from or goes to that port.
"""

from __future__ import annotations

from ipaddress import ip_address

from scapy.fields import (
    ByteEnumField,
    ByteField,
    LEIntEnumField,
    LEIntField,
    LELongField,
    LEShortField,
    StrField,
    StrLenField,
    XByteField,
    XLEIntField,
    XLELongField,
    XStrFixedLenField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, Raw, bind_bottom_up, bind_layers

from harp.wire_sums import crc32c, header_tag

HEADER_BYTES = 44
JOINED_BYTES = 1024  # of a datagram that brings several frames, at most
TAGGED_BYTES = 36
ADDRESS_BYTES = 18  # of each address in ACCEPT
VERSION = 3
FRAGMENTS_MAX = 64  # ``flags`` of DATA: into how many a whole chunk is cut, 2 at least; 0: whole
RUN = 0x80  # ``flags`` of DATA: with the number of chunks that follow one another in this frame
RUN_MOST = 16
OFF_QUEUE = 1  # ``flags`` of ACK: frames of its path arrive on a wrong queue
TYPES = {1: "FIRST", 2: "COOKIE", 3: "ACCEPT", 4: "DATA", 5: "ACK", 6: "PROBE", 7: "CLOSE",
         8: "VERSION"}
REASONS = {
    0: "done",
    1: "the application closed with messages under way",
    2: "a message was longer than its posted buffer",
    3: "the other end broke this protocol",
    4: "out of memory",
    5: "version: none in common",
    6: "no path carries frames of a useful length",
    7: "nothing was heard from the other end for too long",
}


class Harp(Packet):
    """The header of every frame; ``length`` is filled in, ``crc`` and ``tag`` by :func:`seal`."""

    name = "HARP"
    fields_desc = [  # noqa: RUF012  (scapy's own idiom)
        ByteField("version", VERSION),
        ByteEnumField("type", 4, TYPES),
        ByteField("path", 0),
        ByteField("flags", 0),
        XLELongField("connection", 0),
        LEShortField("epoch", 0),
        LEShortField("length", None),
        LEIntField("packet", 0),
        LEIntField("message", 0),
        LEIntField("offset", 0),
        LEIntField("size", 0),
        XLEIntField("crc", 0),
        XLELongField("tag", 0),
    ]

    def post_build(self, header: bytes, payload: bytes) -> bytes:
        """Fill in ``length`` unless it was given."""
        if self.length is None:
            header = header[:14] + len(payload).to_bytes(2, "little") + header[16:]
        return header + payload

    def payload_bytes(self) -> int:
        """Bytes behind the header: ``length``, and of a run those of all its chunks."""
        length = int(self.length)
        if TYPES.get(self.type) != "DATA" or not self.flags & RUN or self.offset >= self.size:
            return length
        return min(int(self.flags - RUN) * length, int(self.size - self.offset))

    def extract_padding(self, rest: bytes) -> tuple[bytes, bytes]:
        """Split off the bytes behind the payload: no part of this frame (see ``frames``)."""
        return rest[:self.payload_bytes()], rest[self.payload_bytes():]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:  # noqa: ARG002  (as in scapy)
        """Choose the body by ``type``; what this version does not know stays raw."""
        if self.version != VERSION and TYPES.get(self.type) != "VERSION":
            return Raw
        return BODIES.get(self.type, Raw)


class Body(Packet):
    """A body fills its frame: nothing is left for a further layer but what is too long."""

    def extract_padding(self, rest: bytes) -> tuple[bytes, bytes]:
        """All that is left is too much."""
        return b"", rest


class Parameters(Body):
    """FIRST and ACCEPT: what an end brings to a connection."""

    name = "HARP parameters"
    fields_desc = [  # noqa: RUF012
        XLELongField("connection", 0),
        XStrFixedLenField("nonce", bytes(16), 16),
        LEShortField("epoch", 0),
        LEShortField("segment", 1408),
        LEShortField("paths", 1),
        ByteField("flags", 0),
        XByteField("traffic_class", 0),
        LEIntField("messages", 0),
        LEIntField("frames", 0),
        LEIntField("first", 0),
        XStrFixedLenField("cookie", bytes(16), 16),
        StrField("addresses", b""),
    ]

    def known(self) -> list[tuple[str, int]]:
        """Further addresses and UDP ports of the listening end; FIRST has zeros in their place."""
        each = (self.addresses[at:at + ADDRESS_BYTES]
                for at in range(0, len(self.addresses), ADDRESS_BYTES))
        pairs = [(ip_address(one[:16]), int.from_bytes(one[16:], "little")) for one in each]
        return [(str(getattr(ip, "ipv4_mapped", None) or ip), port) for ip, port in pairs if port]


class Cookie(Body):
    """COOKIE: what FIRST must bring back."""

    name = "HARP cookie"
    fields_desc = [XStrFixedLenField("cookie", bytes(16), 16)]  # noqa: RUF012


class Ack(Body):
    """ACK: what has arrived on a path, and credit. See :meth:`arrived`."""

    name = "HARP acknowledgement"
    fields_desc = [  # noqa: RUF012
        LELongField("messages", 0),
        LELongField("bytes", 0),
        LELongField("frames", 0),
        LEIntField("delay_ns", 0),
        LEIntField("marked", 0),
        LEIntField("sent_ns", 0),
        LEShortField("bits", 0),
        LEShortField("zero", 0),
        StrLenField("map", b"", length_from=lambda ack: (ack.bits + 7) // 8),
    ]

    def arrived(self, largest: int) -> set[int]:
        """Packet numbers that the map names; ``largest``, the header's, stands outside of it."""
        bits = int.from_bytes(self.map, "little")
        return {(largest - 1 - i) % 2**32 for i in range(self.bits) if bits >> i & 1}


class Close(Body):
    """CLOSE: why, and a text for the other end's log."""

    name = "HARP close"
    fields_desc = [LEIntEnumField("reason", 0, REASONS), StrField("text", b"")]  # noqa: RUF012


class Versions(Body):
    """VERSION: what the listening end speaks."""

    name = "HARP versions"
    fields_desc = [  # noqa: RUF012
        ByteField("lowest", VERSION),
        ByteField("highest", VERSION),
        LEShortField("zero", 0),
    ]


BODIES: dict[int, type[Packet]] = {1: Parameters, 2: Cookie, 3: Parameters, 5: Ack, 7: Close,
                                   8: Versions}


def frames(datagram: bytes) -> list[bytes]:
    """Cut what one UDP datagram brings into frames: DATA and ACK may follow one another."""
    found, rest = [], datagram
    while len(rest) >= 2 * HEADER_BYTES and len(datagram) <= JOINED_BYTES and (
            rest[0] == VERSION and TYPES.get(rest[1]) in ("DATA", "ACK")):
        end = HEADER_BYTES + Harp(rest[:HEADER_BYTES]).payload_bytes()
        if end + HEADER_BYTES > len(rest):
            break
        found.append(rest[:end])
        rest = rest[end:]
    return [*found, rest]


def seal(frame: Packet, key: bytes, lap: int = 0) -> bytes:
    """The bytes of ``frame``, a :class:`Harp` with its payload, with CRC and tag by ``key``.

    ``lap`` is what the header does not carry of its number: bits 32 to 55.
    """
    data = bytes(frame)
    payload = data[HEADER_BYTES:]
    covered = data[:32] + crc32c(payload).to_bytes(4, "little")
    return covered + header_tag(key, covered, lap).to_bytes(8, "little") + payload


def holds(frame: bytes, key: bytes, lap: int = 0) -> bool:
    """Whether the tag and the CRC of a whole frame hold under ``key``; ``lap`` as in `seal`."""
    if len(frame) < HEADER_BYTES:
        return False
    tag = int.from_bytes(frame[TAGGED_BYTES:HEADER_BYTES], "little")
    crc = int.from_bytes(frame[32:TAGGED_BYTES], "little")
    return header_tag(key, frame[:TAGGED_BYTES], lap) == tag and crc32c(frame[HEADER_BYTES:]) == crc


def bind(port: int) -> None:
    """Let scapy dissect UDP from and to ``port`` as HARP."""
    bind_bottom_up(UDP, Harp, sport=port)
    bind_bottom_up(UDP, Harp, dport=port)
    bind_layers(UDP, Harp, sport=port, dport=port)
