"""BPF programs at the ports of hosts and switches: some instructions each.

A packet that crosses a veth pair keeps what the sending host's kernel knew of it, as it would not
on a cable. The route of a packet with a hash goes by that hash, and TCP sockets hand over a random
one. So a switch forgets it and the kernel hashes the five-tuple; or, to spray, gives each packet
another at random.

At a host, acknowledgments of HARP and of TCP get the priority that pfifo_fast serves first: they do
not wait behind the host's own data. Linux's fq_codel, which systemd makes the default, does that
with flows that have little to send (RFC 8290, section 4.2); not every kernel has it.

The programs stay for as long as their devices do (tcx, since Linux 6.6).
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from harp._cnet import lib
from lab.bpf import (
    FORGET_HASH,
    GET_RANDOM,
    GO_ON,
    SET_HASH,
    TCX_EGRESS,
    TCX_INGRESS,
    attach_for_good,
    instruction,
    load_classifier,
)
from lab.namespace import LabError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.namespace import Namespace

_CALL, _MOVE_REGISTER, _MOVE_NUMBER = 0x85, 0xBF, 0xB7
_PACKET_BYTE, _PACKET_SHORT, _STORE = 0x30, 0x28, 0x63
_ADD, _AND, _SHIFT_RIGHT = 0x07, 0x57, 0x77
_JUMP, _IF_EQUAL, _UNLESS_EQUAL, _UNLESS_SAME = 0x05, 0x15, 0x55, 0x5D
_PRIORITY = 32  # of struct __sk_buff
_INTERACTIVE = 6  # TC_PRIO_INTERACTIVE, which goes to the first band of pfifo_fast
_IP, _IP_BYTES = 14, 20


def attach_to_switch(space: Namespace, devices: Sequence[str], *, spray: bool) -> None:
    """Let a switch hash the five-tuple of what comes by these devices, or spray it."""
    _attach(space, devices, _SPRAY if spray else _FORGET, TCX_INGRESS)


def attach_to_host(space: Namespace, devices: Sequence[str]) -> None:
    """Let acknowledgments leave a host by these devices before what waits there."""
    _attach(space, devices, _PREFER_ACKS, TCX_EGRESS)


def _attach(space: Namespace, devices: Sequence[str], code: bytes, where: int) -> None:
    try:
        program = load_classifier(code)
        try:
            for device in devices:
                attach_for_good(space, device, program, where)
        finally:
            os.close(program)
    except OSError as error:
        raise LabError(f"no BPF program at the ports of {space.name}: {error.strerror}") from (
            error)


def _jump(code: int, of: int = 0, imm: int = 0, *, over: bytes) -> bytes:
    """A jump over instructions, by what register 0 holds."""
    return instruction(code, 0, of, len(over) // 8, imm)


_FORGET = instruction(_CALL, imm=FORGET_HASH) + GO_ON
_SPRAY = b"".join((
    instruction(_MOVE_REGISTER, 6, 1), instruction(_CALL, imm=GET_RANDOM),
    instruction(_MOVE_REGISTER, 1, 6), instruction(_MOVE_REGISTER, 2, 0),
    instruction(_CALL, imm=SET_HASH), GO_ON))

# From the last part to the first, since a jump says how much it leaves out. Register 6 is the
# packet's, for loads; TCP acknowledges where a packet is as long as its headers.
_PREFER = instruction(_MOVE_NUMBER, 1, imm=_INTERACTIVE) + instruction(_STORE, 6, 1, _PRIORITY)
_IF_ALL_HEADERS = b"".join((
    instruction(_PACKET_BYTE, imm=_IP + _IP_BYTES + 12), instruction(_AND, imm=0xF0),
    instruction(_SHIFT_RIGHT, imm=2), instruction(_ADD, imm=_IP_BYTES),
    instruction(_MOVE_REGISTER, 7, 0), instruction(_PACKET_SHORT, imm=_IP + 2),
    _jump(_UNLESS_SAME, of=7, over=_PREFER)))
_OF_TCP = _jump(_UNLESS_EQUAL, imm=socket.IPPROTO_TCP,
                over=_IF_ALL_HEADERS + _PREFER) + _IF_ALL_HEADERS
_NO_ACK = _jump(_JUMP, over=_OF_TCP + _PREFER)
_OF_UDP = b"".join((
    instruction(_PACKET_BYTE, imm=_IP + _IP_BYTES + 8 + 1),
    _jump(_IF_EQUAL, imm=lib.HARP_ACK, over=_NO_ACK + _OF_TCP), _NO_ACK))
_PREFER_ACKS = b"".join((
    instruction(_MOVE_REGISTER, 6, 1), instruction(_PACKET_BYTE, imm=_IP + 9),
    _jump(_UNLESS_EQUAL, imm=socket.IPPROTO_UDP, over=_OF_UDP), _OF_UDP, _OF_TCP, _PREFER, GO_ON))
