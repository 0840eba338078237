"""What a switch does with a packet that comes in, before it routes it: some instructions of BPF.

A packet that crosses a veth pair keeps what the sending host's kernel knew of it, as it would not
on a cable. The route of a packet with a hash goes by that hash, and TCP sockets hand over a random
one. So a switch forgets it and the kernel hashes the five-tuple; or, to spray, gives each packet
another at random. The programs stay for as long as their devices do (tcx, since Linux 6.6).
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

from sim.network.lab.kernel import call_bpf, instruction, load_classifier
from sim.network.network import NetworkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.network.lab.space import Namespace

_PROG_ATTACH, _TCX_INGRESS = 8, 46
_GET_RANDOM, _FORGET_HASH, _SET_HASH = 7, 41, 48  # enum bpf_func_id of linux/bpf.h
_CALL, _MOVE_REGISTER, _MOVE_NUMBER, _EXIT = 0x85, 0xBF, 0xB7, 0x95


def attach_to_ingress(space: Namespace, devices: Sequence[str], *, spray: bool) -> None:
    """Let a switch hash the five-tuple of what comes by these devices, or spray it."""
    try:
        program = load_classifier(_SPRAY if spray else _FORGET)
        try:
            with space.entered():
                for device in devices:
                    index = socket.if_nametoindex(device)
                    call_bpf(_PROG_ATTACH, struct.pack("IIII", index, program, _TCX_INGRESS, 0))
        finally:
            os.close(program)
    except OSError as error:
        raise NetworkError(f"no BPF program at the ports of {space.name}: {error.strerror}") from (
            error)


_GO_ON = instruction(_MOVE_NUMBER, 0, imm=-1) + instruction(_EXIT)
_FORGET = instruction(_CALL, imm=_FORGET_HASH) + _GO_ON
_SPRAY = b"".join((
    instruction(_MOVE_REGISTER, 6, 1), instruction(_CALL, imm=_GET_RANDOM),
    instruction(_MOVE_REGISTER, 1, 6), instruction(_MOVE_REGISTER, 2, 0),
    instruction(_CALL, imm=_SET_HASH), _GO_ON))
