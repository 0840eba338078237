"""Network interfaces as the kernel describes them; read-only.

From the ioctls of netdevice(7), ethtool's (linux/ethtool.h) and the generic netlink family
``netdev`` (linux/netdev.h), which since Linux 6.3 names what a driver can do with XDP: these see
the network namespace that the caller is in. An unreadable value is None.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

SYS = Path("/sys/class/net")
ZERO_COPY = ("ice", "i40e", "ixgbe", "igb", "igc", "idpf", "mlx5_core", "stmmac", "virtio_net",
             "gve")
"""Drivers with zero-copy AF_XDP in current kernels, for those that cannot say it themselves."""
NATIVE = ("ena", "mana", "hv_netvsc", "bnxt_en", "veth", "tun")
"""Drivers with XDP of their own, without zero copy."""

HALF = ("ena", "gve")
"""Drivers that attach an XDP program only if at most half of the queues are in use."""
ZERO_COPY_MTU_BYTES = 3686
"""The largest MTU with which newer kernels bind zero copy, in frames of 4 KiB: what
`harp_xdp_zero_copy_mtu` of cnet/ports/xdp_socket.h gives."""

_SIOCGIFFLAGS, _SIOCGIFMTU, _SIOCGIFHWADDR, _SIOCETHTOOL = 0x8913, 0x8921, 0x8927, 0x8946
_SIOCGIFADDR = 0x8915
_IFF_UP, _IFF_RUNNING, _ARPHRD_ETHER = 1, 0x40, 1
_GDRVINFO, _GCHANNELS, _GRSSH, _GSTRINGS, _GSSET_INFO, _GFEATURES = 3, 0x3C, 0x46, 0x1B, 0x37, 0x3A
_GRINGPARAM = 0x10
_SS_FEATURES = 4


@dataclass(frozen=True)
class Nic:
    """An interface; ``xdp`` is "zero copy", "native", "generic", or None."""

    name: str
    driver: str | None
    up: bool
    mtu: int
    queues: int
    queues_most: int | None
    """Receive queues that it could have."""
    xdp: str | None
    several_buffers: bool | None
    """Whether a packet may be longer than one frame."""
    rss: str | None
    ntuple: str | None
    """Steering by rules: "on", "off" or "impossible"."""
    node: int | None


def nics() -> list[Nic]:
    """All interfaces but loopback, by name."""
    features = xdp_features()
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for index, name in sorted(socket.if_nameindex(), key=lambda pair: pair[1]):
            with contextlib.suppress(OSError):  # it went away meanwhile
                if _ask_device(control, name, _SIOCGIFHWADDR, "H") == _ARPHRD_ETHER:
                    found.append(_nic(control, name, index, features.get(index)))
    return found


def has_address(name: str) -> bool:
    """Whether an interface has an IPv4 address, or one of IPv6 that is not its link's own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            _ask_device(control, name, _SIOCGIFADDR, "H")
        except OSError:
            return any(at == name and not address.is_link_local
                       for at, address in _ipv6_addresses())
    return True


def interface_of(address: str) -> str | None:
    """Give the interface that has this address; of IPv4 only its first one is known."""
    wanted = ip_address(address)
    if wanted.version == 6:
        return next((name for name, known in _ipv6_addresses() if known == wanted), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                if _ask_device(control, name, _SIOCGIFADDR, ">4xI") == int(wanted):
                    return name
    return None


def is_own_address(address: str) -> bool:
    """Whether an address, IPv6 with or without brackets, is one of this host's."""
    version = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(version, socket.SOCK_DGRAM) as asking:
        try:
            asking.bind((address.strip("[]"), 0))
        except OSError:
            return False
    return True


def _ipv6_addresses() -> list[tuple[str, IPv6Address]]:
    """Interfaces and their addresses: address, index, prefix, scope, flags and name a line."""
    known = Path("/proc/thread-self/net/if_inet6")
    lines = map(str.split, known.read_text().splitlines() if known.exists() else [])
    return [(name, IPv6Address(bytes.fromhex(digits))) for digits, _, _, _, _, name in lines]


def gpus(root: Path = Path("/")) -> int:
    """GPUs of NVIDIA's that this host has: display or 3D controllers on PCI."""
    devices = (root / "sys/bus/pci/devices").glob("*")
    return sum((device / "vendor").read_text().strip() == "0x10de"
               and (device / "class").read_text().startswith(("0x0300", "0x0302"))
               for device in devices)


def usable_queues(driver: str | None, most: int) -> int:
    """Queues that a card may have for its driver to take an XDP program."""
    return max(1, most // 2) if driver in HALF else most


def _nic(control: socket.socket, name: str, index: int, features: int | None) -> Nic:
    driver = _driver(control, name)
    path = SYS / name
    if _number(path / "ifindex") != index:  # /sys shows another namespace
        path = Path("/nonexistent")
    queues, most = _channels(control, name)
    flags = _ask_device(control, name, _SIOCGIFFLAGS, "H")
    return Nic(name, driver, flags & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING,
               _ask_device(control, name, _SIOCGIFMTU, "i"),
               queues or len(list(path.glob("queues/rx-*"))) or 1, most, _xdp(driver, features),
               None if features is None else bool(features & 32), _rss(control, name),
               _ntuple(control, name), _number(path / "device/numa_node"))


def _ask_device(control: socket.socket, name: str, request: int, form: str) -> int:
    if len(name) > 15:
        raise OSError(errno.ENODEV, name)
    said = fcntl.ioctl(control, request, struct.pack("16s24x", name.encode()))
    return int(struct.unpack_from(form, said, 16)[0])


def _xdp(driver: str | None, features: int | None) -> str | None:
    if features:
        return "zero copy" if features & 8 else "native"
    if features is None and driver in ZERO_COPY:
        return "zero copy"
    if features is None and driver in NATIVE:
        return "native"
    return None if driver is None else "generic"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


# ---- ethtool ----


def _ethtool(control: socket.socket, name: str, request: bytes) -> bytes | None:
    cell = array.array("B", request)
    try:
        fcntl.ioctl(control, _SIOCETHTOOL,
                    struct.pack("16sP8x", name.encode(), cell.buffer_info()[0]))
    except OSError:
        return None
    return cell.tobytes()


def _driver(control: socket.socket, name: str) -> str | None:
    said = _ethtool(control, name, struct.pack("I", _GDRVINFO) + bytes(192))
    return said[4:36].split(b"\0")[0].decode(errors="replace") if said else None


def _channels(control: socket.socket, name: str) -> tuple[int | None, int | None]:
    """Receive queues that there are, and that there could be."""
    found = _counts(control, name, _GCHANNELS, _CHANNELS)
    if not found:
        return None, None
    of = [found.get(kind, (0, 0)) for kind in ("rx", "combined")]
    return sum(now for now, _ in of), sum(most for _, most in of)


_CHANNELS = {"rx": (0, 4), "tx": (1, 5), "combined": (3, 7)}
_RINGS = {"rx": (0, 4), "tx": (3, 7)}
"""Offsets of maximum and current values in struct ethtool_channels and ethtool_ringparam."""


def channels(name: str) -> dict[str, tuple[int, int]]:
    """Queues by kind, in the words of ``ethtool -L``: how many there are, and could be."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        return _counts(control, name, _GCHANNELS, _CHANNELS)


def rings(name: str) -> dict[str, tuple[int, int]]:
    """Sizes of the rings, in the words of ``ethtool -G``: what they are, and could be."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        return _counts(control, name, _GRINGPARAM, _RINGS)


def _counts(control: socket.socket, name: str, command: int,
            places: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    said = _ethtool(control, name, struct.pack("I", command) + bytes(32))
    if not said:
        return {}
    numbers = struct.unpack_from("8I", said, 4)
    return {kind: (int(numbers[now]), int(numbers[most]))
            for kind, (most, now) in places.items() if numbers[most]}


def _rss(control: socket.socket, name: str) -> str | None:
    said = _ethtool(control, name, struct.pack("I", _GRSSH) + bytes(44))
    if not said:
        return None
    table, key = struct.unpack_from("2I", said, 8)
    if not table:
        return None
    return f"table of {table}, key of {key} bytes" if key else f"table of {table}, key unknown"


def _ntuple(control: socket.socket, name: str) -> str | None:
    counted = _ethtool(control, name, struct.pack("IIQI", _GSSET_INFO, 0, 1 << _SS_FEATURES, 0))
    if not counted:
        return None
    count = struct.unpack_from("I", counted, 16)[0]
    names = _ethtool(control, name,
                     struct.pack("III", _GSTRINGS, _SS_FEATURES, count) + bytes(32 * count))
    blocks = (count + 31) // 32
    states = _ethtool(control, name, struct.pack("II", _GFEATURES, blocks) + bytes(16 * blocks))
    if not names or not states:
        return None
    order = [names[12 + 32 * i:44 + 32 * i].split(b"\0")[0] for i in range(count)]
    if b"rx-ntuple-filter" not in order:
        return None
    block, bit = divmod(order.index(b"rx-ntuple-filter"), 32)
    available, _, active, _ = struct.unpack_from("4I", states, 8 + 16 * block)
    if active >> bit & 1:
        return "on"
    return "off" if available >> bit & 1 else "impossible"


# ---- Generic netlink ----

_GENL_ID, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 0x10, 3, 1, 2
_DEV_GET, _DEV_IFINDEX, _DEV_XDP_FEATURES = 1, 1, 3
_REQUEST, _DUMP, _ERROR, _DONE = 1, 0x300, 2, 3


def xdp_features() -> dict[int, int]:
    """XDP features of each driver (``enum netdev_xdp_act``), by interface index."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16) as netlink:  # NETLINK_GENERIC
            netlink.settimeout(2)
            name = b"netdev\0"
            attribute = struct.pack("HH", 4 + len(name), _FAMILY_NAME) + name + bytes(1)
            family = [struct.unpack("H", answer[_FAMILY_ID])[0]
                      for answer in _ask(netlink, _GENL_ID, _GET_FAMILY, attribute, _REQUEST)]
            devices = _ask(netlink, family[0], _DEV_GET, b"", _REQUEST | _DUMP) if family else []
    except OSError:
        return {}
    return {int.from_bytes(device[_DEV_IFINDEX], "little"):
            int.from_bytes(device.get(_DEV_XDP_FEATURES, b""), "little") for device in devices}


def _ask(netlink: socket.socket, family: int, command: int, attributes: bytes,
         flags: int) -> list[dict[int, bytes]]:
    body = struct.pack("BBH", command, 1, 0) + attributes
    netlink.send(struct.pack("IHHII", 16 + len(body), family, flags, 1, 0) + body)
    found: list[dict[int, bytes]] = []
    while True:
        data = netlink.recv(1 << 16)
        at = 0
        while at + 16 <= len(data):
            length, kind = struct.unpack_from("IH", data, at)
            if kind in {_ERROR, _DONE} or length < 16:
                return found
            found.append(_attributes(data[at + 20:at + length]))
            at += (length + 3) & ~3
        if not flags & _DUMP:
            return found


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("HH", data, at)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[at + 4:at + length]
        at += (length + 3) & ~3
    return found
