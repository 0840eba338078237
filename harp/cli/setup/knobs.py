"""Knobs of a host that ``harp setup`` reads and sets, each with a key.

    mtu eth1              ip link set dev eth1 mtu 9000
    queues eth1           ethtool -L eth1 combined 8
    rings eth1            ethtool -G eth1 rx 4096 tx 4096
    irq eth1-TxRx-0       echo 3 > /proc/irq/77/smp_affinity_list; numbers change, names do not
    file /proc/sys/...    echo 8388608 > /proc/sys/...
    pages /sys/...        echo 1024 > /sys/.../hugepages-2048kB/nr_hugepages
    conf /etc/harp/...    the lines of harp setup in the file that the plugin reads

A value is text in the command's form, or None where the knob does not exist. Undo uses the same
knobs, with the values that were read first.
"""
# ruff: noqa: D102  (what a method does stands at Knob)

from __future__ import annotations

import glob
import shlex
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harp.cli.setup.host_access import Host

BEGIN = "# harp setup: begin (harp setup --undo takes these lines away; lines below them win)\n"
END = "# harp setup: end\n"


class Knob(ABC):
    """A setting of a host."""

    kind: str
    tool: str | None = None
    """Tool that must be installed to set it."""
    optional = False
    """Whether HARP works without it."""
    makes = False
    """Whether setting it creates it."""
    short = "the kernel did not accept the value"
    """Why its value may differ from the one set."""

    def __init__(self, of: str) -> None:
        self.of = of

    def differs(self, host: Host, value: str | None) -> bool:
        """Whether it has another value and can have this one."""
        now = self.read(host)
        return now != value and (now is not None or self.makes)

    @property
    def key(self) -> str:
        """Its name, in two words."""
        return f"{self.kind} {self.of}"

    @abstractmethod
    def read(self, host: Host) -> str | None:
        """Give its current value."""

    @abstractmethod
    def shown(self, host: Host, value: str | None) -> str:
        """Give the shell command that sets it."""

    @abstractmethod
    def set(self, host: Host, value: str | None) -> None:
        """Set it, or raise Refused."""


class _Command(Knob):
    """Set by a tool."""

    words: tuple[str, ...]

    def command(self, value: str | None) -> list[str]:
        return [word.format(of=self.of) for word in self.words] + (value or "").split()

    def shown(self, host: Host, value: str | None) -> str:  # noqa: ARG002  (as Knob has it)
        return " ".join(self.command(value))

    def set(self, host: Host, value: str | None) -> None:
        host.run(self.command(value))


class Mtu(_Command):
    """Bytes of the largest packet of an interface."""

    kind, tool = "mtu", "ip"
    words = ("ip", "link", "set", "dev", "{of}", "mtu")

    def read(self, host: Host) -> str | None:
        return next((str(nic.mtu) for nic in host.nics() if nic.name == self.of), None)


class Queues(_Command):
    """Queues of an interface, by kind."""

    kind, tool = "queues", "ethtool"
    words = ("ethtool", "-L", "{of}")

    def read(self, host: Host) -> str | None:
        return as_words(host.channels(self.of))


class Rings(_Command):
    """Descriptors of each ring of an interface."""

    kind, tool = "rings", "ethtool"
    words = ("ethtool", "-G", "{of}")

    def read(self, host: Host) -> str | None:
        return as_words(host.rings(self.of))


def as_words(counts: dict[str, tuple[int, int]]) -> str | None:
    """Format current counts for ethtool: ``rx 256 tx 256``."""
    return " ".join(f"{kind} {now}" for kind, (now, _) in counts.items()) or None


class File(Knob):
    """A kernel file with one value. A container may be able to read but not write it."""

    kind, optional = "file", True

    def path(self, host: Host) -> str:  # noqa: ARG002  (as Knob has it)
        """Give its current path."""
        return self.of

    def read(self, host: Host) -> str | None:
        text = host.read(self.path(host))
        return None if text is None else text.strip()

    def shown(self, host: Host, value: str | None) -> str:
        return f"echo {value} > {self.path(host)}"

    def set(self, host: Host, value: str | None) -> None:
        host.write(self.path(host), value or "")


class Pages(File):
    """The number of huge pages of one size."""

    kind = "pages"
    short = "memory is fragmented or in use; try again right after boot"


class Irq(File):
    """The CPUs that serve an interrupt; for some drivers the kernel alone decides."""

    kind = "irq"

    def path(self, host: Host) -> str:
        found = host.find(f"/proc/irq/*/{glob.escape(self.of)}")
        return f"{found[0].rpartition('/')[0]}/smp_affinity_list" if found else ""


class Conf(Knob):
    """Lines of harp setup at the top of the file that the plugin reads; other lines stay."""

    kind, makes = "conf", True

    def read(self, host: Host) -> str | None:
        text = host.read(self.of) or ""
        _, begin, rest = text.partition(BEGIN)
        return rest.partition(END)[0] if begin else None

    def others(self, host: Host) -> str:
        """Give the lines that are not this program's."""
        before, _, rest = (host.read(self.of) or "").partition(BEGIN)
        return before + rest.partition(END)[2]

    def shown(self, host: Host, value: str | None) -> str:
        if value is None:
            return f"sed -i '/^# harp setup: begin/,/^# harp setup: end/d' {shlex.quote(self.of)}" \
                if self.others(host) else f"rm {shlex.quote(self.of)}"
        folder = self.of.rpartition("/")[0]
        make = "" if host.find(folder) else f"mkdir -p {shlex.quote(folder)}\n"
        return f"{make}cat > {shlex.quote(self.of)} <<'EOF'\n{self.text(host, value)}EOF"

    def text(self, host: Host, value: str | None) -> str:
        """Give the whole file."""
        return ("" if value is None else BEGIN + value + END) + self.others(host)

    def set(self, host: Host, value: str | None) -> None:
        host.store(self.of, self.text(host, value) or None)


KINDS: dict[str, type[Knob]] = {known.kind: known for known in (
    Mtu, Queues, Rings, File, Pages, Irq, Conf)}


def knob(key: str) -> Knob:
    """Give the knob of a key."""
    kind, _, of = key.partition(" ")
    return KINDS[kind](of)


def is_key(text: str) -> bool:
    """Whether a text is the key of a knob."""
    kind, _, of = text.partition(" ")
    return kind in KINDS and bool(of)
