"""BPF programs as instructions: assemble, load, attach.

A program of some instructions needs neither a compiler nor libbpf: it is bytes (the kernel's
Documentation/bpf/standardization/instruction-set.rst), and bpf(2) takes them. Programs attach to a
device by tcx (Linux 6.6): either for as long as the device lives (`attach_for_good`), or until the
descriptors of a link are closed (`attach_to_ingress`).
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from typing import TYPE_CHECKING

from lab.system_calls import checked, libc

if TYPE_CHECKING:
    from lab.namespace import Namespace

_BPF = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _PROG_LOAD, _PROG_ATTACH, _PROG_GET_FD_BY_ID, _LINK_CREATE = 0, 5, 8, 13, 28
_ARRAY, _SCHED_CLS = 2, 3
XDP, TCX_INGRESS, TCX_EGRESS = 37, 46, 47
"""Attach points of programs: enum bpf_attach_type of linux/bpf.h."""
GET_RANDOM, KTIME_NS, LOAD_BYTES, STORE_BYTES, FORGET_HASH, SET_HASH = 7, 5, 26, 9, 41, 48
"""Helpers that programs call: enum bpf_func_id of linux/bpf.h."""


def call_bpf(command: int, attributes: bytes) -> int:
    """Call bpf(2); ``attributes`` is the part of union bpf_attr that the command reads."""
    cell = ctypes.create_string_buffer(attributes, len(attributes))
    return checked(libc.syscall(_BPF[os.uname().machine], command, cell, len(attributes)))


def instruction(code: int, to: int = 0, of: int = 0, off: int = 0, imm: int = 0) -> bytes:
    """Return struct bpf_insn: operation, registers of destination and source, jump, number."""
    return struct.pack("BBhi", code, to | of << 4, off, imm)


GO_ON = instruction(0xB7, 0, imm=-1) + instruction(0x95)
"""Leave the packet to the next program (TCX_NEXT)."""
DROP = instruction(0xB7, 0, imm=2) + instruction(0x95)
"""Drop the packet (TCX_DROP)."""


def make_array() -> int:
    """Make an array map of one 64-bit number; return its descriptor."""
    return call_bpf(_MAP_CREATE, struct.pack("IIIII", _ARRAY, 4, 8, 1, 0))


def load_classifier(program: bytes) -> int:
    """Load a program that judges packets at a device; return its descriptor."""
    code = ctypes.create_string_buffer(program, len(program))
    licence = ctypes.create_string_buffer(b"Dual BSD/GPL")
    return call_bpf(_PROG_LOAD, struct.pack("IIQQ96x", _SCHED_CLS, len(program) // 8,
                                            ctypes.addressof(code), ctypes.addressof(licence)))


def attach_for_good(space: Namespace, device: str, loaded: int, where: int) -> None:
    """Attach a loaded program to a device for as long as the device lives."""
    with space.entered():
        index = socket.if_nametoindex(device)
        call_bpf(_PROG_ATTACH, struct.pack("IIII", index, loaded, where, 0))


def _link(space: Namespace, device: str, loaded: int, where: int) -> int:
    with space.entered():
        index = socket.if_nametoindex(device)
        return call_bpf(_LINK_CREATE, struct.pack("IIII16x", loaded, index, where, 0))


def attach_to_ingress(space: Namespace, device: str, program: bytes) -> list[int]:
    """Let a program judge arriving packets until the returned descriptors are closed."""
    loaded = load_classifier(program)
    return [_link(space, device, loaded, TCX_INGRESS), loaded]


def attach_xdp_again(space: Namespace, device: str, program_id: int) -> list[int]:
    """Attach an XDP program that is attached elsewhere to this device, too."""
    loaded = call_bpf(_PROG_GET_FD_BY_ID, struct.pack("III", program_id, 0, 0))
    return [_link(space, device, loaded, XDP), loaded]
