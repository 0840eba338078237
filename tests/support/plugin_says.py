"""Ask an NCCL network plugin what it finds: a program that prints JSON.

    plugin_says.py PLUGIN [listen] [fork]

Loads it, calls init, devices and getProperties of version 12; with `listen` also listen on device
0, with `fork` connect in a child of fork; and finalize.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from pathlib import Path

LEVELS = {2: "warn", 3: "info"}
Logger = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int,
                          ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p)
Call = ctypes.CFUNCTYPE(ctypes.c_int)
Init = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, Logger,
                        ctypes.c_void_p)
Devices = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
GetProperties = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
Listen = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p,
                          ctypes.POINTER(ctypes.c_void_p))
Connect = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p,
                           ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
Close = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Properties(ctypes.Structure):
    """struct nccl_properties_v12."""

    _fields_ = (("name", ctypes.c_char_p), ("pci", ctypes.c_char_p), ("guid", ctypes.c_uint64),
                ("pointers", ctypes.c_int), ("global", ctypes.c_int), ("flush", ctypes.c_int),
                ("speed", ctypes.c_int), ("port", ctypes.c_int), ("latency", ctypes.c_float),
                ("comms", ctypes.c_int), ("receives", ctypes.c_int), ("offload", ctypes.c_int),
                ("offload_version", ctypes.c_int), ("parts_n", ctypes.c_int),
                ("parts", ctypes.c_int * 8), ("p2p", ctypes.c_size_t),
                ("collective", ctypes.c_size_t), ("requests", ctypes.c_int),
                ("rail", ctypes.c_int16), ("plane", ctypes.c_int16))


class Table(ctypes.Structure):
    """struct nccl_net_v12."""

    _fields_ = (("name", ctypes.c_char_p), ("init", Init), ("devices", Devices),
                ("properties", GetProperties), ("listen", Listen), ("connect", Connect),
                ("others", ctypes.c_void_p * 10), ("close_listen", Close),
                ("more", ctypes.c_void_p * 3), ("finalize", Close), ("attributes", ctypes.c_void_p))


def main(path: str, *wishes: str) -> None:
    """Print one JSON object."""
    said: list[tuple[str, str]] = []
    whole: list[str] = []

    def log(level: int, _part: int, _file: bytes, _line: int, form: bytes, device: bytes,
            text: bytes) -> None:
        said.append((LEVELS.get(level, str(level)), text.decode()))
        whole.append((form % (device, text)).decode())

    logger = Logger(log)
    net = Table.in_dll(ctypes.CDLL(path), "ncclNetPlugin_v12")
    context = ctypes.c_void_p()
    devices: list[dict[str, object]] = []
    found: dict[str, object] = {"name": net.name.decode(), "devices": devices, "said": said,
                                "lines": whole}
    found["init"] = net.init(ctypes.byref(context), 1, None, logger, None)
    count = ctypes.c_int()
    if found["init"] == 0:
        net.devices(ctypes.byref(count))
    for device in range(count.value):
        properties = Properties()
        # NCCL clears nothing before it asks.
        ctypes.memset(ctypes.byref(properties), 0xa5, ctypes.sizeof(properties))
        assert net.properties(device, ctypes.byref(properties)) == 0
        fields = {name: getattr(properties, name) for name, _ in Properties._fields_}
        fields["parts"] = properties.parts[:fields.pop("parts_n")]
        devices.append({**fields, "name": properties.name.decode(),
                        "pci": (properties.pci or b"").decode()})
    if "listen" in wishes:
        handle, comm = ctypes.create_string_buffer(128), ctypes.c_void_p()
        found["listen"] = net.listen(context, 0, handle, ctypes.byref(comm))
        found["threads"] = threads()
        if "fork" in wishes:
            found["forked"] = in_child(net, context, handle)
        if comm.value:
            net.close_listen(comm)
    if found["init"] == 0:
        found["finalize"] = net.finalize(context)
    found["descriptors"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    print(json.dumps(found))


def threads() -> list[list[int]]:
    """CPUs that each thread but this one may run on, in the order in which they began."""
    tasks = sorted(int(task.name) for task in Path("/proc/self/task").iterdir())
    return [sorted(os.sched_getaffinity(task)) for task in tasks if task != os.getpid()]


def in_child(net: Table, context: ctypes.c_void_p, handle: ctypes.Array[ctypes.c_char]) -> int:
    """Result of connect in a child of fork."""
    child = os.fork()
    if child == 0:
        comm = ctypes.c_void_p()
        os._exit(net.connect(context, 0, handle, ctypes.byref(comm), None))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
