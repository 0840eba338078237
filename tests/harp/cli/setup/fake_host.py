"""A host in a folder for ``harp setup``: files as the kernel has them, and tools that change them.

    host = FakeHost(tmp_path, nodes={0: "0-7", 1: "8-15"}, memory_gib=256)
    host.card("eth1", driver="ena", most=16, node=1)
    said = run(host, "--mtu", "9000")

What `ethtool` and `ip` would do is done to the cards; ``commands`` has what was run. Queues have an
interrupt each, and getting other queues gives them new numbers, as most drivers do. Everything that
`harp setup` may change is in ``everything()``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from click.testing import CliRunner

from harp.cli.setup import setup
from harp.cli.setup.host_access import Host, Refused
from harp.net.nics import Nic

if TYPE_CHECKING:
    from pathlib import Path

GIB = "hugepages-1048576kB"
MIB = "hugepages-2048kB"
KIB = {GIB: 1 << 20, MIB: 2 << 10}
CONF = "/etc/harp/harp.conf"
"""The file of settings, as the plugin reads it."""


class FakeHost(Host):
    """Cards, interrupts, huge pages."""

    def __init__(self, root: Path, nodes: dict[int, str] | None = None, memory_gib: int = 512,
                 sizes: tuple[str, ...] = (GIB, MIB), gpus: int = 0) -> None:
        super().__init__(root)
        self.nodes = nodes or {0: "0-7"}
        self.cards: dict[str, Nic] = {}
        self.queues: dict[str, dict[str, tuple[int, int]]] = {}
        self.sizes_of_rings: dict[str, dict[str, tuple[int, int]]] = {}
        self.tools = {"ip", "ethtool"}
        self.root_user = True
        self.commands: list[str] = []
        self.refuses: dict[str, str] = {}
        self.dies_at: str | None = None
        self.routes = {"-4": "default via 10.0.0.1 dev eth0 proto dhcp metric 100\n", "-6": ""}
        self.without_address: set[str] = set()
        self.most_pages: dict[str, int] = {}
        self.next_irq = 70
        self.file("/proc/sys/net/core/rmem_max", "212992")
        self.file("/proc/sys/net/core/wmem_max", "212992")
        self.file("/sys/devices/system/cpu/online", f"0-{7 if len(self.nodes) == 1 else 15}")
        self.file("/proc/meminfo", f"MemTotal:    {memory_gib << 20} kB\n"
                                   f"MemAvailable: {memory_gib << 20} kB")
        for node, cpus in self.nodes.items():
            self.file(f"/sys/devices/system/node/node{node}/cpulist", cpus)
            for size in sizes:
                self.file(self.pool(node, size), "0")
        for gpu in range(gpus):
            self.file(f"/sys/bus/pci/devices/0000:{gpu:02x}:00.0/vendor", "0x10de")
            self.file(f"/sys/bus/pci/devices/0000:{gpu:02x}:00.0/class", "0x030200")

    @staticmethod
    def pool(node: int, size: str) -> str:
        return f"/sys/devices/system/node/node{node}/hugepages/{size}/nr_hugepages"

    def pages(self, node: int = 0) -> tuple[int, int]:
        """Pages of 1 GiB and of 2 MiB."""
        return int(self.read(self.pool(node, GIB)) or 0), int(self.read(self.pool(node, MIB)) or 0)

    def file(self, path: str, text: str) -> None:
        at = self._at(path)
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text + "\n")

    def card(self, name: str, *, driver: str = "ena", now: int = 2, most: int = 8,
             kinds: tuple[str, ...] = ("combined",), node: int = 0, xdp: str = "native",
             ring: tuple[int, int] | None = (1024, 8192), up: bool = True) -> None:
        self.cards[name] = Nic(name, driver, up, 1500, now, most, xdp, True, None, "off", node)
        self.queues[name] = dict.fromkeys(kinds, (now, most))
        self.sizes_of_rings[name] = {"rx": ring, "tx": ring} if ring else {}
        self.file(f"/sys/class/net/{name}/device/numa_node", str(node))
        for family in ("ipv4", "ipv6"):
            self.file(f"/proc/sys/net/{family}/neigh/{name}/retrans_time_ms", "1000")
        self._make_interrupts(name)

    def _make_interrupts(self, name: str) -> None:
        for old in self.find(f"/sys/class/net/{name}/device/msi_irqs/*"):
            number = old.rpartition("/")[2]
            self._at(old).unlink()
            self._at(f"/proc/irq/{number}/smp_affinity_list").unlink()
            for action in self.find(f"/proc/irq/{number}/*/"):
                self._at(action).rmdir()
        for queue in range(sum(now for now, _ in self.queues[name].values())):
            self.file(f"/sys/class/net/{name}/device/msi_irqs/{self.next_irq}", "msix")
            self.file(f"/proc/irq/{self.next_irq}/smp_affinity_list", "0-7")
            self._at(f"/proc/irq/{self.next_irq}/{name}-Tx-Rx-{queue}").mkdir()
            self.next_irq += 1

    def affinities(self) -> dict[str, str]:
        """CPUs by the interrupts' names."""
        return {path.split("/")[4]: (self.read(f"/proc/irq/{path.split('/')[3]}/"
                                               "smp_affinity_list") or "").strip()
                for path in self.find("/proc/irq/*/*/")}

    def everything(self) -> dict[str, object]:
        """Settings that may be changed, by lasting names."""
        files = {str(path): path.read_bytes() for top in ("proc/sys", "sys/devices", "etc", "var")
                 for path in (self.root / top).rglob("*") if path.is_file()}
        return {**files, "irq": self.affinities(), "queues": dict(self.queues),
                "rings": dict(self.sizes_of_rings),
                "mtu": {name: card.mtu for name, card in self.cards.items()}}

    # ---- What Host does ----

    def write(self, path: str, text: str) -> None:
        self._before(f"echo {text} > {path}")
        if not self._at(path).exists():
            raise Refused("No such file or directory")
        if path.endswith("nr_hugepages"):
            size = path.split("/")[-2]
            now = int(self.read(path) or 0)
            text = str(min(int(text), max(now, self.most_pages.get(size, 1 << 30))))
            self._take_memory((int(text) - now) * KIB[size])
        super().write(path, text)

    def _take_memory(self, kib: int) -> None:
        lines = (self.read("/proc/meminfo") or "").splitlines()
        free = int(lines[1].split()[1]) - kib
        self.file("/proc/meminfo", f"{lines[0]}\nMemAvailable: {free} kB")

    def _before(self, command: str) -> None:
        self.commands.append(command)
        if self.dies_at and self.dies_at in command:
            raise KeyboardInterrupt
        for part, reason in self.refuses.items():
            if part in command:
                raise Refused(reason)

    def has(self, tool: str) -> bool:
        return tool in self.tools

    def run(self, words) -> str:
        if words[0] == "ip" and words[2] == "route":
            return self.routes[words[1]]
        self._before(" ".join(words))
        if words[0] == "ip":
            assert words[:4] == ["ip", "link", "set", "dev"]
            self.cards[words[4]] = replace(self.cards[words[4]], mtu=int(words[6]))
            return ""
        name, counts = words[2], dict(zip(words[3::2], map(int, words[4::2]), strict=True))
        of = {"-L": self.queues, "-G": self.sizes_of_rings}[words[1]]
        for kind, count in counts.items():
            assert 0 <= count <= of[name][kind][1]
        of[name] = {kind: (counts.get(kind, now), most) for kind, (now, most) in of[name].items()}
        if words[1] == "-L":
            self._make_interrupts(name)
        return ""

    def may_change(self) -> bool:
        return self.root_user

    def nics(self) -> list[Nic]:
        return [self.cards[name] for name in sorted(self.cards)]

    def has_address(self, name: str) -> bool:
        return name not in self.without_address

    def channels(self, name: str) -> dict[str, tuple[int, int]]:
        return self.queues[name]

    def rings(self, name: str) -> dict[str, tuple[int, int]]:
        return self.sizes_of_rings[name]


def small(folder: Path, **known) -> FakeHost:
    """Make a host of one card beside the one that everybody comes in by."""
    made = FakeHost(folder, **{"memory_gib": 256, **known})
    made.card("eth0")
    made.card("eth1")
    return made


def run(host: FakeHost, *arguments: str, status: int = 0) -> str:
    """Run ``harp setup``; what is not a command is a comment. Returns what it printed."""
    before = len(host.commands)
    result = CliRunner().invoke(setup, arguments, obj=host, standalone_mode=False)
    assert result.exception is None, result.output
    assert result.return_value == status, result.output
    lines = result.output.splitlines()
    shown = [line for line in lines if re.match("echo|ip|ethtool", line)]
    assert shown[:len(host.commands) - before] == host.commands[before:]
    return result.output


def fails(host: FakeHost, *arguments: str) -> str:
    """Run it where it refuses: nothing is changed, and this is the sentence."""
    before = host.everything()
    result = CliRunner().invoke(setup, arguments, obj=host)
    assert result.exit_code in {1, 2}
    assert host.everything() == before
    assert "Traceback" not in result.output
    return " ".join(result.output.split())
