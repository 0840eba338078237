"""What a switch does with a packet that comes in, before it routes it: some instructions of BPF.

A packet that crosses a veth pair keeps what the sending host's kernel knew of it, as it would not
on a cable. The route of a packet with a hash goes by that hash, and TCP sockets hand over a random
one. So a switch forgets it and the kernel hashes the five-tuple; or, to spray, gives each packet
another at random. The programs stay for as long as their devices do (tcx, since Linux 6.6).
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from typing import TYPE_CHECKING

from sim.network.network import NetworkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.network.lab.space import Namespace

_libc = ctypes.CDLL(None, use_errno=True)
_SYSCALL = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH, _SCHED_CLS, _TCX_INGRESS = 5, 8, 3, 46
_GET_RANDOM, _FORGET_HASH, _SET_HASH = 7, 41, 48  # enum bpf_func_id of linux/bpf.h
_CALL, _MOVE_REGISTER, _MOVE_NUMBER, _EXIT = 0x85, 0xBF, 0xB7, 0x95


def attach_to_ingress(space: Namespace, devices: Sequence[str], *, spray: bool) -> None:
    """Let a switch hash the five-tuple of what comes by these devices, or spray it."""
    try:
        program = _load(_SPRAY if spray else _FORGET)
        try:
            with space.entered():
                for device in devices:
                    _bpf(_PROG_ATTACH, struct.pack("IIII", socket.if_nametoindex(device), program,
                                                   _TCX_INGRESS, 0))
        finally:
            os.close(program)
    except OSError as error:
        raise NetworkError(f"no BPF program at the ports of {space.name}: {error.strerror}") from (
            error)


def _instruction(code: int, to: int = 0, of: int = 0, number: int = 0) -> bytes:
    return struct.pack("BBhi", code, to | of << 4, 0, number)


_GO_ON = _instruction(_MOVE_NUMBER, 0, number=-1) + _instruction(_EXIT)
_FORGET = _instruction(_CALL, number=_FORGET_HASH) + _GO_ON
_SPRAY = b"".join((
    _instruction(_MOVE_REGISTER, 6, 1), _instruction(_CALL, number=_GET_RANDOM),
    _instruction(_MOVE_REGISTER, 1, 6), _instruction(_MOVE_REGISTER, 2, 0),
    _instruction(_CALL, number=_SET_HASH), _GO_ON))


def _load(program: bytes) -> int:
    code = ctypes.create_string_buffer(program, len(program))
    licence = ctypes.create_string_buffer(b"Dual BSD/GPL")
    return _bpf(_PROG_LOAD, struct.pack("IIQQ96x", _SCHED_CLS, len(program) // 8,
                                        ctypes.addressof(code), ctypes.addressof(licence)))


def _bpf(command: int, attributes: bytes) -> int:
    cell = ctypes.create_string_buffer(attributes, len(attributes))
    result: int = _libc.syscall(_SYSCALL[os.uname().machine], command, cell, len(attributes))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
