"""What a ToR of bench/tccl_lab.py does to packets: BPF programs at the ingress of its ports.

They see IPv4 over Ethernet, each packet for itself: segmentation offloads have to be off.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

from lab.bpf import call_bpf, load_classifier
from lab.bpf import instruction as _op

if TYPE_CHECKING:
    from lab.veth import End

_LINK_CREATE, _TCX_INGRESS = 28, 46
_RANDOM, _LOAD_BYTES, _STORE_BYTES = 7, 26, 9  # helpers of linux/bpf.h
_LENGTH, _PRIORITY = 0, 32  # fields of struct __sk_buff
ETHERNET_BYTES = 14
_GO_ON = _op(0xB7, 0, imm=-1) + _op(0x95)
_DROP = _op(0xB7, 0, imm=2) + _op(0x95)
_FLIPPED = 60
"""Offset of the byte that is changed: payload, which the checksums of UDP and TCP cover."""


def _with_chance(share: float, then: bytes) -> bytes:
    """Instructions that do ``then`` in a share of cases; r6 is the packet."""
    instructions = len(then) // 8
    return b"".join((_op(0xBF, 6, 1), _op(0x85, imm=_RANDOM), _op(0x77, 0, imm=1),
                     _op(0x54, 0, imm=0x7FFFFFFF),
                     _op(0x35, 0, off=instructions, imm=min(round(share * 2**31), 2**31 - 1)),
                     then, _GO_ON))


def drop_share(share: float) -> bytes:
    """Drop this share of what arrives; 1: all of it."""
    return _DROP if share >= 1 else _with_chance(share, _DROP)


def drop_long(nbytes: int) -> bytes:
    """Drop frames of more bytes."""
    return b"".join((_op(0x61, 0, 1, off=_LENGTH), _op(0x25, 0, off=2, imm=nbytes), _GO_ON, _DROP))


def drop_to(address: str) -> bytes:
    """Drop what goes to an IPv4 address."""
    wanted = int.from_bytes(socket.inet_aton(address), "big")
    return b"".join((_op(0xBF, 6, 1), _op(0x20, imm=ETHERNET_BYTES + 16),
                     _op(0x15, 0, off=2, imm=wanted), _GO_ON, _DROP))


def flip_bits(share: float) -> bytes:
    """Turn over a bit of this share of the packets."""
    return _with_chance(share, b"".join((
        _op(0xBF, 1, 6), _op(0xB7, 2, imm=_FLIPPED), _op(0xBF, 3, 10), _op(0x07, 3, imm=-8),
        _op(0xB7, 4, imm=1), _op(0x7A, 10, off=-8), _op(0x85, imm=_LOAD_BYTES),
        _op(0x71, 1, 10, off=-8), _op(0xA7, 1, imm=4), _op(0x73, 10, 1, off=-8),
        _op(0xBF, 1, 6), _op(0xB7, 2, imm=_FLIPPED), _op(0xBF, 3, 10), _op(0x07, 3, imm=-8),
        _op(0xB7, 4, imm=1), _op(0xB7, 5), _op(0x85, imm=_STORE_BYTES))))


def choose_class(share: float, htb_class: int) -> bytes:
    """Let this share of the packets leave by a class of htb."""
    return _with_chance(share, _op(0xB7, 1, imm=htb_class) + _op(0x63, 6, 1, off=_PRIORITY))


class Programs:
    """What is attached; a port may have several, which all see each packet."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def attach(self, end: End, program: bytes) -> None:
        """Let a program see what arrives at ``end``."""
        loaded = load_classifier(program)
        self._open.append(loaded)
        with end.space.entered():
            link = struct.pack("IIII16x", loaded, socket.if_nametoindex(end.device), _TCX_INGRESS,
                               0)
            self._open.append(call_bpf(_LINK_CREATE, link))

    def close(self) -> None:
        """Detach all."""
        for one in self._open:
            os.close(one)
        self._open = []
