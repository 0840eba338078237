"""BPF programs that impair packets at the ingress of a device: loss, bit flips, delay, policing.

Each function returns a program for `lab.bpf.attach_to_ingress`. A program judges what the kernel
hands over: where each packet counts, turn the sender's segmentation offloads off
(`lab.offloads.SEGMENTATION`), or a large segment is dropped as one. Programs that look into a
packet expect IPv4 over Ethernet.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from lab.bpf import (
    DROP,
    GET_RANDOM,
    GO_ON,
    KTIME_NS,
    LOAD_BYTES,
    STORE_BYTES,
    attach_to_ingress,
)
from lab.bpf import instruction as _op

if TYPE_CHECKING:
    from lab.veth import End

_LENGTH, _QUEUE, _PRIORITY = 0, 12, 32  # fields of struct __sk_buff
ETHERNET_BYTES = 14
_FLIPPED = 60
"""Offset of the byte that is changed: payload, which the checksums of UDP and TCP cover."""


def _with_chance(share: float, then: bytes) -> bytes:
    """Instructions that do ``then`` in a share of cases; r6 is the packet."""
    instructions = len(then) // 8
    return b"".join((_op(0xBF, 6, 1), _op(0x85, imm=GET_RANDOM), _op(0x77, 0, imm=1),
                     _op(0x54, 0, imm=0x7FFFFFFF),
                     _op(0x35, 0, off=instructions, imm=min(round(share * 2**31), 2**31 - 1)),
                     then, GO_ON))


def drop_share(share: float) -> bytes:
    """Drop this share of arriving packets at random; 1: all of them."""
    if not 0 <= share <= 1:
        raise ValueError(f"a share of {share} of what arrives; 0 to 1 are possible")
    return DROP if share == 1 else _with_chance(share, DROP)


def drop_long(nbytes: int) -> bytes:
    """Drop frames of more bytes."""
    return b"".join((_op(0x61, 0, 1, off=_LENGTH), _op(0x25, 0, off=2, imm=nbytes), GO_ON, DROP))


def drop_to(address: str) -> bytes:
    """Drop packets to an IPv4 address."""
    wanted = int.from_bytes(socket.inet_aton(address), "big")
    return b"".join((_op(0xBF, 6, 1), _op(0x20, imm=ETHERNET_BYTES + 16),
                     _op(0x15, 0, off=2, imm=wanted), GO_ON, DROP))


def drop_tcp_port(port: int) -> bytes:
    """Drop TCP over IPv4 without options, from or to this port."""
    at = ETHERNET_BYTES + 20
    return b"".join((
        _op(0xBF, 6, 1),                            # r6 = the packet, for loads from it
        _op(0x30, imm=ETHERNET_BYTES + 9),          # r0 = the protocol (or leave)
        _op(0x55, 0, off=6, imm=socket.IPPROTO_TCP),
        _op(0x28, imm=at),                          # r0 = the source port
        _op(0x15, 0, off=2, imm=port),
        _op(0x28, imm=at + 2),
        _op(0x55, 0, off=2, imm=port),
        DROP, GO_ON))


def drop_protocol(protocol: int) -> bytes:
    """Drop what is IPv4 and of this protocol: ICMP, as many firewalls do, or UDP."""
    return b"".join((
        _op(0xBF, 6, 1),                            # r6 = the packet, for loads from it
        _op(0x30, imm=ETHERNET_BYTES + 9),          # r0 = the protocol (or leave)
        _op(0x15, 0, off=2, imm=protocol),
        GO_ON, DROP))


def police_protocol(protocol: int, rate_bps: int, burst_bytes: int, bucket: int) -> bytes:
    """Drop what is IPv4 and of this protocol above a rate."""
    rest = police(rate_bps, burst_bytes, bucket)
    return b"".join((
        _op(0xBF, 7, 1), _op(0xBF, 6, 1),
        _op(0x30, imm=ETHERNET_BYTES + 9),
        _op(0x15, 0, off=len(GO_ON) // 8, imm=protocol), GO_ON,
        _op(0xBF, 1, 7), rest))


def flip_bits(share: float) -> bytes:
    """Invert a bit of this share of the packets."""
    return _with_chance(share, b"".join((
        _op(0xBF, 1, 6), _op(0xB7, 2, imm=_FLIPPED), _op(0xBF, 3, 10), _op(0x07, 3, imm=-8),
        _op(0xB7, 4, imm=1), _op(0x7A, 10, off=-8), _op(0x85, imm=LOAD_BYTES),
        _op(0x71, 1, 10, off=-8), _op(0xA7, 1, imm=4), _op(0x73, 10, 1, off=-8),
        _op(0xBF, 1, 6), _op(0xB7, 2, imm=_FLIPPED), _op(0xBF, 3, 10), _op(0x07, 3, imm=-8),
        _op(0xB7, 4, imm=1), _op(0xB7, 5), _op(0x85, imm=STORE_BYTES))))


def choose_class(share: float, htb_class: int) -> bytes:
    """Let this share of the packets leave by a class of htb."""
    return _with_chance(share, _op(0xB7, 1, imm=htb_class) + _op(0x63, 6, 1, off=_PRIORITY))


def delay(delay_us: int) -> bytes:
    """Delay each packet by 1 to 100 us, as behind a long cable.

    The kernel's CPU spins meanwhile, since few kernels have netem: for a few packets whose round
    trip counts, not for streams.
    """
    if not 1 <= delay_us <= 100:
        raise ValueError(f"a delay of {delay_us} us; 1 to 100 are possible")
    return b"".join((
        _op(0x85, imm=KTIME_NS), _op(0xBF, 6, 0),         # r6 = now, ns
        _op(0x07, 6, imm=delay_us * 1000),                # r6 += delay
        _op(0xB7, 7, imm=1 << 14),                        # r7 = looks at the clock that are left
        _op(0x07, 7, imm=-1), _op(0x15, 7, off=2),        # r7 -= 1; if r7 == 0: go on
        _op(0x85, imm=KTIME_NS), _op(0xAD, 0, 6, off=-4),  # r0 = now; if r0 < r6: look again
        GO_ON))


def choose_queue(queues: int, factor: int) -> bytes:
    """Choose the receive queue by a hash of the UDP ports, as a NIC with several queues does.

    A packet that is routed on keeps its queue. ``factor`` is the hash's key.
    """
    if queues < 2 or queues & (queues - 1):
        raise ValueError(f"{queues} queues; the hash takes a power of two")
    return b"".join((
        _op(0xBF, 6, 1),                               # r6 = the packet, for loads from it
        _op(0x20, imm=ETHERNET_BYTES + 20),            # r0 = both ports, behind IPv4 (or leave)
        _op(0x24, 0, imm=factor), _op(0x74, 0, imm=20),  # r0 = (u32) (r0 * factor) >> 20
        _op(0x54, 0, imm=queues - 1), _op(0x07, 0, imm=1),
        _op(0x63, 6, 0, off=_QUEUE),                   # queue_mapping = 1 + queue: "received on"
        GO_ON))


def police(rate_bps: int, burst_bytes: int, bucket: int) -> bytes:
    """Drop packets above a rate, without a queue; many kernels lack the policer of tc.

    GCRA, the virtual-scheduling form of the leaky bucket (ITU-T I.371). ``bucket`` is an array map
    (`lab.bpf.make_array`).
    """
    cost = round(8e9 / rate_bps * (1 << 16))  # of a byte, in 2^-16 ns
    burst_ns = round(burst_bytes * 8e9 / rate_bps)
    if not (0 < cost < 1 << 31 and 0 < burst_ns < 1 << 31):
        raise ValueError(f"a policer of {rate_bps} bit/s with {burst_bytes} bytes; a byte may take "
                         "0.1 ns to 32 us, and the burst 2 s")
    return b"".join((
        _op(0x61, 7, 1),                              # r7 = bytes of the packet
        _op(0x18, 8, 2, imm=bucket), _op(0),          # r8 = &theoretical arrival time
        _op(0x85, imm=KTIME_NS),                      # r0 = now, ns
        _op(0x79, 1, 8),                              # r1 = *r8
        _op(0x3D, 1, 0, off=1), _op(0xBF, 1, 0),      # if r1 < r0: r1 = r0
        _op(0xBF, 2, 1), _op(0x1F, 2, 0),             # r2 = r1 - r0: how far ahead of its time
        _op(0x25, 2, off=6, imm=burst_ns),            # if r2 > burst: drop
        _op(0x27, 7, imm=cost), _op(0x77, 7, imm=16),  # r7 = cost of the packet in ns
        _op(0x0F, 1, 7), _op(0x7B, 8, 1),             # *r8 = r1 + r7
        GO_ON, DROP))


class Impairments:
    """Programs that stay attached until they are closed; each sees every packet of its end."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def attach(self, end: End, program: bytes) -> None:
        """Let a program judge packets that arrive at ``end``."""
        self._open.extend(attach_to_ingress(end.space, end.device, program))

    def close(self) -> None:
        """Detach all."""
        for one in self._open:
            os.close(one)
        self._open = []
