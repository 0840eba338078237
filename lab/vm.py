"""An emulated machine with zero-copy AF_XDP, for hosts that have no NIC for it.

QEMU offers virtio_net, and current kernels drive it with zero copy both ways, also where there
is no hardware help for virtualisation. The machine has two CPUs, 1.5 GiB and two NICs, or more:

    main namespace                                   peer namespace
    eth0 02:00:00:00:00:01 10.0.0.1/24 ---- hub ---- eth1 02:00:00:00:00:02 10.0.0.2/24
    eth2 02:00:00:00:00:03 10.0.1.1/24 ---- hub ---- eth3 02:00:00:00:00:04 10.0.1.2/24   (hubs=2)

It boots in seconds from a file system in memory that holds busybox, the few kernel modules that
it needs and the given programs. ``run(script, programs)`` boots it, runs a shell script as root
in the main namespace and returns the script's exit code and output. In the script,

    peer COMMAND...     runs a command in the peer namespace
    monitor COMMAND...  is a command of QEMU's monitor: `monitor set_link eth0 off` pulls a cable
    /programs           holds the programs, and PATH leads there

From a terminal: python -m lab.vm 'ip addr; peer xdp_blast --help' build/vm/xdp_blast

Emulation says nothing about absolute speed. Ratios compare the work per byte of two programs on
one emulated CPU and one driver.

The kernel, and on Debian 12 QEMU, come from Debian's backports, are checked by apt against
Debian's signatures, are unpacked and not installed, and are kept in build/vm. The host's own
package sources stay as they are.
"""

from __future__ import annotations

import fcntl
import lzma
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "vm"

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITE = "trixie-backports"  # the first suite whose kernels send from virtio_net with zero copy
# Between two NICs on a busy host QEMU 7.2, Debian 12's own, stops to take frames for good; and it
# multiplies without carry bit by bit, which CRC32C needs.
QEMU_SUITE = "bookworm-backports"
QEMU_PACKAGES = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios")
TRIED_KERNEL = "7.3.4+deb13"  # taken while the suite has it, else the suite's newest
# In the order of loading. Kernels have the first ones built in, but for older ones.
MODULES = ("virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci",
           "failover", "net_failover", "virtio_net", "tcp_bbr")
NEEDED = frozenset(MODULES[-4:])

# Segments of 64 KB that arrive as one buffer do not fit XDP, and the driver hands a queue to a
# zero-copy socket only if it translates addresses by the DMA interface (iommu_platform).
NIC = ("virtio-net-pci,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,"
       "disable-legacy=on,disable-modern=off,iommu_platform=on,romfile=")
# Without `erms` kernel and libc copy by words: `rep movsb` is emulated byte by byte, which would
# cost kernel TCP a third of its speed and nothing else. Without `pclmulqdq` HARP's CRC goes by its
# table: how fast that instruction is emulated depends on where the program's code lies, and
# zero copy made 1.8 or 0.5 Gb/s by whether 256 more bytes of code stood before it.
CPU = "max,-erms,-pclmulqdq"
EXIT_LINE = re.compile(r"^machine: exit code (\d+)$")

INIT = """#!/bin/busybox sh
# Process 1. The kernel speaks on the first serial line, the script alone on the second.
/bin/busybox --install -s /bin
export PATH=/programs:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
exec </dev/null >/dev/ttyS1 2>&1
stty -F /dev/ttyS1 raw
for module in MODULES; do insmod /modules/$module.ko || echo "machine: no module $module"; done

# The peer namespace lives as long as the file that it is bound to.
unshare -n sh -c 'mount --bind /proc/self/ns/net /run/peer'
printf '#!/bin/sh\\nexec nsenter --net=/run/peer "$@"\\n' >/bin/peer
# The third serial line is QEMU's monitor. Its output is not read, or echoed to it; what was
# echoed before stty came so far is a line of its own, or the first command would be part of it.
stty -F /dev/ttyS2 raw -echo
printf '#!/bin/sh\\n{ echo; echo "$@"; } >/dev/ttyS2\\n' >/bin/monitor
chmod +x /bin/peer /bin/monitor
peer sleep 60 & holder=$!
until [ "$(readlink /proc/$holder/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do :; done
ip link set lo up; peer ip link set lo up
hub=0; near=0
while [ $hub -lt HUBS ]; do
    far=$((near + 1))
    ip link set eth$far netns $holder
    ip addr add 10.0.$hub.1/24 dev eth$near; ip link set eth$near up
    peer ip addr add 10.0.$hub.2/24 dev eth$far; peer ip link set eth$far up
    hub=$((hub + 1)); near=$((near + 2))
done
kill $holder

# Each NIC is served by the CPU of its end: 0 sends from here, 1 receives in the peer namespace.
# The kernel's own choice crosses over, and costs zero copy and TCP half of their speed or more.
nic=0
while [ $nic -lt $near ]; do
    for irq in $(grep "virtio$nic-" /proc/interrupts | cut -d: -f1); do
        echo $((nic % 2)) >/proc/irq/$irq/smp_affinity_list
    done
    nic=$((nic + 1))
done

cd /tmp
sh /script
echo "machine: exit code $?"
sync
reboot -f
"""


ABORTED = "ended (QEMU's exit code -6)"
"""On a busy host QEMU's threads race at times while the machine boots, and one fails an assertion
of QEMU's own (iotlb_to_section in system/physmem.c); the machine is started once more."""


class MachineError(RuntimeError):
    """The machine could not be made, did not boot, or did not end in time."""


@dataclass(frozen=True)
class Result:
    """The exit code of a script, and its output."""

    code: int
    output: str


def run(script: str, programs: Iterable[Path] = (), *, timeout_s: float = 300,
        each_line: Callable[[str], None] | None = None, cpu: str = CPU,
        kernel_options: str = "", hubs: int = 1, suite: str = SUITE) -> Result:
    """Boot, run ``script`` with ``programs`` at hand, and return what it left.

    ``each_line`` sees the output line by line while it comes. ``cpu`` is QEMU's -cpu. Both
    namespaces have a NIC at each of the ``hubs``. The kernel is the newest of Debian's ``suite``.
    """
    kernel = kernel_folder(suite)
    with tempfile.TemporaryDirectory(prefix="harp-vm-") as name:
        folder = Path(name)
        initrd, kernel_log, qemu_log, monitor = (
            folder / part for part in ("initrd", "kernel", "qemu", "monitor"))
        modules = [name for name in MODULES if (kernel / f"{name}.ko").exists()]
        init = INIT.replace("MODULES", " ".join(modules)).replace("HUBS", str(hubs))
        initrd.write_bytes(b"".join(_archive(_tree(init, script, programs, kernel))))
        command = [
            *emulator(), "-accel", "tcg,thread=multi", "-cpu", cpu, "-smp", "2", "-m", "1536",
            "-nodefaults", "-display", "none", "-no-reboot", "-kernel", str(kernel / "vmlinuz"),
            "-initrd", str(initrd), "-append", f"console=ttyS0 quiet panic=-1 {kernel_options}",
            "-serial", f"file:{kernel_log}", "-serial", "stdio",
            # QEMU talks to itself: the guest's line ends where its monitor listens.
            "-chardev", f"socket,id=monitor,path={monitor},server=on,wait=off",
            "-mon", "chardev=monitor", "-chardev", f"socket,id=asks,path={monitor}",
            "-serial", "chardev:asks",
            *(word for nic in range(2 * hubs) for word in (
                "-netdev", f"hubport,id=h{nic},hubid={nic // 2}",
                "-device", f"{NIC},netdev=h{nic},id=eth{nic},mac=02:00:00:00:00:0{nic + 1}"))]
        lines, ended = _watch(command, timeout_s, each_line, qemu_log)
        if ended == ABORTED and not lines:
            lines, ended = _watch(command, timeout_s, each_line, qemu_log)
        last = EXIT_LINE.match(lines[-1]) if lines else None
        if last:
            return Result(int(last[1]), "".join(line + "\n" for line in lines[:-1]))
        raise MachineError(
            f"the emulated machine {ended} without the script's exit code; its last lines:\n"
            + "\n".join(lines[-20:])
            + "".join(f"\n{who}'s last lines:\n" + "\n".join(_text(log).splitlines()[-60:])
                      for who, log in (("its kernel", kernel_log), ("QEMU", qemu_log))))


def _watch(command: list[str], timeout_s: float,
           each_line: Callable[[str], None] | None, qemu_log: Path) -> tuple[list[str], str]:
    """Run QEMU to its end or the deadline; its second serial line's text, and how it ended."""
    lines: list[str] = []
    with qemu_log.open("w") as log, subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            errors="replace") as qemu:
        assert qemu.stdout
        late = threading.Event()

        def stop() -> None:
            late.set()
            qemu.kill()

        deadline = threading.Timer(timeout_s, stop)
        deadline.start()
        try:
            for line in qemu.stdout:
                lines.append(line.rstrip("\r\n"))
                if each_line and not EXIT_LINE.match(lines[-1]):
                    each_line(lines[-1])
            code = qemu.wait()
        finally:
            deadline.cancel()
            qemu.kill()  # nothing if it ended by itself
    return lines, (f"was stopped after {timeout_s:g} s" if late.is_set()
                   else f"ended (QEMU's exit code {code})")


# The file system in memory

def _tree(init: str, script: str, programs: Iterable[Path],
          kernel: Path) -> Iterator[tuple[str, int, bytes]]:
    """Every entry of the machine's file system: path, mode, content."""
    busybox = tool("busybox", "busybox-static")
    for folder in ("bin", "dev", "modules", "proc", "programs", "root", "run", "sys", "tmp"):
        yield folder, stat.S_IFDIR | 0o755, b""
    yield "run/peer", stat.S_IFREG | 0o644, b""
    yield "bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes()
    yield "init", stat.S_IFREG | 0o755, init.encode()
    yield "script", stat.S_IFREG | 0o644, script.encode()
    for module in sorted(kernel.glob("*.ko")):
        yield f"modules/{module.name}", stat.S_IFREG | 0o644, module.read_bytes()
    libraries = set()
    for program in programs:
        yield f"programs/{program.name}", stat.S_IFREG | 0o755, program.read_bytes()
        libraries |= _libraries(program)
    folders = {parent for library in libraries for parent in library.parents}
    for parent in sorted(folders - {Path("/")}):  # a folder comes before what it holds
        yield str(parent)[1:], stat.S_IFDIR | 0o755, b""
    for library in sorted(libraries):
        yield str(library)[1:], stat.S_IFREG | 0o755, library.read_bytes()


def _libraries(program: Path) -> set[Path]:
    """The shared libraries of a program, its loader too, by their absolute paths."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    if "not found" in done.stdout:
        raise MachineError(f"{program} needs libraries that this host lacks:\n{done.stdout}")
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout)}


def _archive(entries: Iterable[tuple[str, int, bytes]]) -> Iterator[bytes]:
    """The entries as a cpio archive in the "newc" format, which the kernel unpacks at boot."""
    end = ("TRAILER!!!", 0, b"")
    for inode, (path, mode, content) in enumerate([*entries, end], start=1):
        name = path.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + name
        yield header + bytes(-len(header) % 4) + content + bytes(-len(content) % 4)


# Files to fetch

def kernel_folder(suite: str = SUITE) -> Path:
    """The folder with vmlinuz and the modules; fetched from Debian the first time."""
    if platform.machine() != "x86_64":
        raise MachineError(f"the emulated machine runs x86_64 programs, this host is "
                           f"{platform.machine()}")
    if suite == SUITE:
        return _fetched("kernel", _fetch_kernel)
    return _fetched(f"kernel-{suite}", lambda scratch: _fetch_release_kernel(scratch, suite))


def emulator() -> list[str]:
    """QEMU as the first words of a command."""
    own = tool("qemu-system-x86_64", "qemu-system-x86")  # its libraries serve the newer one, too
    if platform.freedesktop_os_release().get("VERSION_CODENAME") != "bookworm":
        return [str(own)]
    folder = _fetched("qemu", _fetch_qemu) / "usr"
    return [str(folder / "bin" / own.name), "-L", str(folder / "share" / "qemu"),
            "-L", str(folder / "share" / "seabios")]


def _fetched(name: str, fetch: Callable[[Path], Path]) -> Path:
    """The folder build/vm/NAME, which is made the first time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once fetch it once
        folder = CACHE / name
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix="fetch-", dir=CACHE) as scratch:
                fetch(Path(scratch)).rename(folder)
    return folder


def _fetch_qemu(scratch: Path) -> Path:
    apt = _private_apt(scratch, QEMU_SUITE)
    _do(["apt-get", *apt, "download", *QEMU_PACKAGES], scratch)
    return _unpacked(scratch)


def _fetch_kernel(scratch: Path) -> Path:
    apt = _private_apt(scratch, SUITE)
    names = set(_do(["apt-cache", *apt, "pkgnames", "linux-"], scratch).split())
    versions = [found[1] for name in names
                if (found := re.fullmatch(r"linux-binary-(.+)-cloud-amd64", name))
                and f"linux-modules-{found[1]}-cloud-amd64" in names]
    if not versions:
        raise MachineError(f"Debian's {SUITE} has no packages linux-binary-*-cloud-amd64")
    version = TRIED_KERNEL if TRIED_KERNEL in versions else max(versions, key=_by_number)
    _do(["apt-get", *apt, "download", f"linux-binary-{version}-cloud-amd64",
         f"linux-modules-{version}-cloud-amd64"], scratch)
    return _kept(_unpacked(scratch), scratch / "kernel")


def _fetch_release_kernel(scratch: Path, suite: str) -> Path:
    """The newest cloud kernel of a release, which is one package."""
    apt = _private_apt(scratch, suite)
    names = _do(["apt-cache", *apt, "pkgnames", "linux-image-"], scratch).split()
    versions = [found[1] for name in names
                if (found := re.fullmatch(r"linux-image-(\d.+)-cloud-amd64", name))]
    if not versions:
        raise MachineError(f"Debian's {suite} has no package linux-image-*-cloud-amd64")
    version = max(versions, key=_by_number)
    _do(["apt-get", *apt, "download", f"linux-image-{version}-cloud-amd64"], scratch)
    return _kept(_unpacked(scratch), scratch / "kernel")


def _private_apt(scratch: Path, suite: str) -> list[str]:
    """Options of apt with state, cache and sources in ``scratch``, once it knows the suite."""
    tool("apt-get", "apt")
    for sub in ("lists/partial", "archives/partial"):
        (scratch / sub).mkdir(parents=True)
    (scratch / "status").touch()
    (scratch / "sources.list").write_text(
        f"deb [signed-by={KEYRING} arch=amd64] http://deb.debian.org/debian {suite} main\n")
    options = [word for setting in (
        f"Dir::Etc::sourcelist={scratch}/sources.list", "Dir::Etc::sourceparts=/dev/null",
        f"Dir::State::lists={scratch}/lists", f"Dir::State::status={scratch}/status",
        f"Dir::Cache={scratch}", "APT::Sandbox::User=root", "Acquire::Languages=none",
        "Acquire::Retries=3") for word in ("-o", setting)]
    _do(["apt-get", *options, "update", "--error-on=any"], scratch)
    return options


def _unpacked(scratch: Path) -> Path:
    tool("dpkg-deb", "dpkg")
    for package in scratch.glob("*.deb"):
        _do(["dpkg-deb", "-x", package.name, "unpacked"], scratch)
    return scratch / "unpacked"


def _kept(unpacked: Path, kernel: Path) -> Path:
    """Of the unpacked packages what the machine needs, in the folder ``kernel``."""
    kernel.mkdir()
    for wanted in ("vmlinuz", *(f"{module}.ko" for module in MODULES)):
        found = [path for path in unpacked.rglob(f"{wanted}*") if path.is_file()]
        if len(found) != 1 and (found or wanted == "vmlinuz" or wanted[:-3] in NEEDED):
            raise MachineError(f"the kernel's packages hold {len(found)} files {wanted}, not one")
        for path in found:
            content = path.read_bytes()
            (kernel / wanted).write_bytes(lzma.decompress(content) if path.suffix == ".xz"
                                          else content)
    return kernel


def _by_number(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


# Helpers

def _do(command: list[str], folder: Path) -> str:
    """Run a command in a folder; return its output, or raise an error with it."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False,
                          timeout=300, env=os.environ | {"LC_ALL": "C"})
    if done.returncode:
        raise MachineError(f"`{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def tool(name: str, package: str) -> Path:
    """The path of a program of this host."""
    path = shutil.which(name)
    if not path:
        raise MachineError(f"{name} is missing: apt-get install {package}")
    return Path(path)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], [Path(name) for name in sys.argv[2:]], timeout_s=600,
                 each_line=lambda line: print(line, flush=True)).code)
