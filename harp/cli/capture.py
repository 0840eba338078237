"""Check that a packet capture is whole: pcap and pcapng, by the lengths that they state.

Scapy, which reads the packets, takes the end of a file for the end of the capture wherever it is,
and a link type that it does not know for bytes of no protocol.

    pcap     24 bytes: magic, version, ..., link type | 16 bytes: ..., stored | bytes stored | ...
    pcapng   type, length | ... | length              | type, length | ... | length         | ...

(draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng)
"""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import BufferedIOBase
    from pathlib import Path

LINK_TYPES = {0: "BSD loopback", 1: "Ethernet", 12: "raw IP", 14: "raw IP", 101: "raw IP",
              113: "Linux cooked", 228: "IPv4", 229: "IPv6", 276: "Linux cooked, version 2"}
"""Those that UDP is found behind (tcpdump.org/linktypes.html)."""
PCAP_MAGIC = (0xA1B2C3D4, 0xA1B23C4D)
SECTION, INTERFACE, BYTE_ORDER = 0x0A0D0D0A, 1, 0x1A2B3C4D
LONGEST = 1 << 28
"""Bytes of a record; more is no length but damage."""


def problem_of(path: Path) -> str:
    """Say what is wrong with a capture, in one sentence without its name; "" if nothing is.

    Raises OSError if it cannot be read.
    """
    with path.open("rb") as plain:
        zipped = plain.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            return _walk(file)
    except EOFError:
        return "it is compressed and ends amid its content: it was copied or written in part"
    except (gzip.BadGzipFile, zlib.error):
        return "it is compressed and damaged"


def _walk(file: BufferedIOBase) -> str:
    head = file.read(4)
    for order in "<", ">":
        if len(head) == 4 and struct.unpack(f"{order}I", head)[0] in PCAP_MAGIC:
            return _walk_pcap(file, order)
    if head == struct.pack("<I", SECTION):
        return _walk_pcapng(file, head)
    return "it is no capture: neither pcap nor pcapng begins like this" if head else "it is empty"


def _walk_pcap(file: BufferedIOBase, order: str) -> str:
    head = file.read(20)
    if len(head) < 20:
        return "it ends amid its header: it was copied or written in part"
    unknown = _unknown_link(struct.unpack(f"{order}I", head[16:])[0] & 0xFFFF)
    if unknown:
        return unknown
    number = 1
    while record := file.read(16):
        stored = struct.unpack(f"{order}I", record[8:12])[0] if len(record) == 16 else 0
        if stored > LONGEST:
            return f"packet {number} is damaged: it states {stored} bytes"
        if len(record) < 16 or len(file.read(stored)) < stored:
            return f"it ends amid packet {number}: it was copied or written in part"
        number += 1
    return ""


def _walk_pcapng(file: BufferedIOBase, head: bytes) -> str:
    order, number = "<", 1
    while head:
        rest = file.read(8)
        if len(head) < 4 or len(rest) < 8:
            return f"it ends amid block {number}: it was copied or written in part"
        if head == struct.pack("<I", SECTION):  # reads alike either way
            order = "<" if struct.unpack("<I", rest[4:])[0] == BYTE_ORDER else ">"
        kind, length = (struct.unpack(f"{order}I", part)[0] for part in (head, rest[:4]))
        if not 12 <= length <= LONGEST or length % 4:
            return f"block {number} is damaged: it states {length} bytes"
        body = rest[4:] + file.read(length - 12)
        if len(body) < length - 8:
            return f"it ends amid block {number}: it was copied or written in part"
        if struct.unpack(f"{order}I", body[-4:])[0] != length:
            return f"block {number} is damaged: its two lengths differ"
        if kind == INTERFACE and (unknown := _unknown_link(struct.unpack(f"{order}H",
                                                                         body[:2])[0])):
            return unknown
        head, number = file.read(4), number + 1
    return ""


def _unknown_link(number: int) -> str:
    if number in LINK_TYPES:
        return ""
    known = ", ".join(sorted(set(LINK_TYPES.values())))
    return f"its packets are of link type {number}, in which no IP is looked for; known are {known}"
