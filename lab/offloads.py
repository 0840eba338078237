"""Offloads of a network device, by ethtool's ioctl (linux/ethtool.h)."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SIOCETHTOOL, GSTRINGS, SS_FEATURES = 0x8946, 0x1B, 4
_SFEATURES, _GSSET_INFO = 0x3B, 0x37
SEGMENTATION = ("tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation",
                "tx-tcp6-segmentation", "tx-udp-segmentation", "tx-generic-segmentation")
"""Offloads that let a sender hand over many packets as one."""
PACKET_BY_PACKET = {**dict.fromkeys(SEGMENTATION, False), "tx-checksum-ip-generic": False}
"""Settings with which a veth pair carries each packet for itself, with its checksum."""


def _ethtool(control: socket.socket, device: str, data: bytearray) -> None:
    cell = array.array("B", data)
    request = struct.pack("16sP8x", device.encode(), cell.buffer_info()[0])
    fcntl.ioctl(control, SIOCETHTOOL, request)
    data[:] = cell.tobytes()


def set_offloads(device: str, wanted: Mapping[str, bool]) -> None:
    """Turn offloads of a device of this namespace on or off, by the kernel's names."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        count = bytearray(struct.pack("IIQI", _GSSET_INFO, 0, 1 << SS_FEATURES, 0))
        _ethtool(control, device, count)
        total = struct.unpack_from("I", count, 16)[0]
        names = bytearray(struct.pack("III", GSTRINGS, SS_FEATURES, total) + bytes(32 * total))
        _ethtool(control, device, names)
        order = [names[12 + 32 * i:44 + 32 * i].split(b"\0")[0].decode() for i in range(total)]
        unknown = sorted(set(wanted) - set(order))
        if unknown:
            raise ValueError(f"{device} has no feature {unknown[0]!r}; it has {', '.join(order)}")
        blocks = [[0, 0] for _ in range((total + 31) // 32)]
        for name, on in wanted.items():
            block, bit = divmod(order.index(name), 32)
            blocks[block][0] |= 1 << bit
            blocks[block][1] |= int(on) << bit
        _ethtool(control, device, bytearray(
            struct.pack("II", _SFEATURES, len(blocks))
            + b"".join(struct.pack("II", *block) for block in blocks)))
