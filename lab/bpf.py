"""System calls that Python has no function for, and BPF programs as instructions.

A program of some instructions needs neither a compiler nor libbpf: it is bytes (the kernel's
Documentation/bpf/standardization/instruction-set.rst), and bpf(2) takes them.
"""

from __future__ import annotations

import ctypes
import os
import struct

libc = ctypes.CDLL(None, use_errno=True)
_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _SCHED_CLS = 5, 3


def checked(result: int) -> int:
    """Return what a call of libc's returned, or raise its OSError."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def call_bpf(command: int, attributes: bytes) -> int:
    """Call bpf(2); ``attributes`` is the part of union bpf_attr that the command reads."""
    cell = ctypes.create_string_buffer(attributes, len(attributes))
    return checked(libc.syscall(_BPF[os.uname().machine], command, cell, len(attributes)))


def instruction(code: int, to: int = 0, of: int = 0, off: int = 0, imm: int = 0) -> bytes:
    """Return struct bpf_insn: operation, registers of destination and source, jump, number."""
    return struct.pack("BBhi", code, to | of << 4, off, imm)


def load_classifier(program: bytes) -> int:
    """Load a program that judges packets at a device; return its descriptor."""
    code = ctypes.create_string_buffer(program, len(program))
    licence = ctypes.create_string_buffer(b"Dual BSD/GPL")
    return call_bpf(_PROG_LOAD, struct.pack("IIQQ96x", _SCHED_CLS, len(program) // 8,
                                            ctypes.addressof(code), ctypes.addressof(licence)))
