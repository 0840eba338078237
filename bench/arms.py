"""Arms of a comparison: programs of bench/c are built and run, and a run is one sample.

An arm moves data in one configuration. The arms of a group run in turn, so that a machine that is
faster in one minute than in the next is so for all of them.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.subject import BenchError
from lab import c_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lab.namespace import Namespace

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "bench" / "c"
BUILT = ROOT / "build" / "bench"
RELEASE = ("-O3",)
PATIENCE_S = 30.0
"""Longest wait for a program to get ready."""


@dataclass(frozen=True)
class Program:
    """A C program of bench/c."""

    sources: tuple[str, ...]
    stack: bool = False
    """Whether it is linked with all of cnet."""


PROGRAMS = {
    "delay_line": Program(("delay_line.c",)),
    "memcpy_rate": Program(("memcpy_rate.c",)),
    "line_rtt": Program(("line_rtt.c",)),
    "shared_ring": Program(("shared_ring.c",)),
    "tcp_blast": Program(("tcp_blast.c",)),
    "triad": Program(("triad.c",)),
    "udp_blast": Program(("udp_blast.c",)),
    "xdp_blast": Program(("xdp_blast.c", "raw_xdp.c")),
    "harp_bench": Program(("harp_bench.c", "harp_bench_settings.c"), stack=True),
    "idle_bench": Program(("idle_bench.c",), stack=True),
    "session_cost": Program(("session_cost.c",), stack=True),
}


def build(name: str) -> Path:
    """Build a program where it is missing or old.

    The stack is compiled as meson does for a release, assertions included.
    """
    program = PROGRAMS[name]
    sources = [SOURCES / source for source in program.sources]
    try:
        if program.stack:
            sources.append(c_programs.library(RELEASE))
        out = BUILT / name
        headers = (*SOURCES.glob("*.h"), *c_programs.HEADERS.glob("*.h"))
        newest = max(path.stat().st_mtime for path in (*sources, *headers))
        if out.exists() and out.stat().st_mtime > newest:
            return out
        BUILT.mkdir(parents=True, exist_ok=True)
        # Another process may run or build the program: replace it as a whole.
        fresh = out.with_suffix(f".{os.getpid()}")
        return c_programs.build(fresh, [str(path) for path in sources], RELEASE).replace(out)
    except AssertionError as error:
        raise BenchError(f"{name} cannot be built:\n{error}") from error


@dataclass(frozen=True)
class Sample:
    """The figures of one run."""

    value: float
    cpus: float = 0.0
    """CPUs that were busy, all of the machine's work counted."""
    more: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """Duration, number and CPUs of measurements."""

    seconds: float = 1.0
    rounds: int = 5
    cpus: tuple[int, int] = (0, 1)
    """Of the sender and of the receiver."""


TCP = {f"TCP {control.upper()}, {n}": ("--congestion", control, "--sockets", str(n))
       for control in ("cubic", "bbr") for n in (1, 2, 4)}
"""Kernel TCP's settings as options of tcp_blast; the best is the reference."""


def one_way(a: Namespace, b: Namespace, receive: Sequence[str | Path], send: Sequence[str | Path],
            unit_of: Callable[[dict[str, Any]], float]) -> Sample:
    """Run a receiver at ``b`` and, once it is ready, a sender at ``a``, until the receiver ends.

    If the receiver's first line is ``ready HANDLE``, the sender gets ``--handle HANDLE``. A
    sender may print a line of JSON of its own, which becomes the sample's ``more``.
    """
    receiver = b.start(*receive, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ready = read_line(receiver, PATIENCE_S).split()
    if ready[:1] != ["ready"]:
        raise _failure(receive, receiver)
    handle = ["--handle", ready[1]] if len(ready) > 1 else []
    sender = a.start(*send, *handle, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = read_line(receiver, 600)
        if not line:
            receiver.wait(PATIENCE_S)
            raise _failure(send, sender) if sender.poll() else _failure(receive, receiver)
        receiver.wait(PATIENCE_S)
        try:
            report = sender.communicate(timeout=10 if handle else 0.2)[0]
        except subprocess.TimeoutExpired:
            sender.kill()
            report = sender.communicate()[0] if not handle else ""
    finally:
        for process in (sender, receiver):
            process.kill()
            process.wait()
    return sample(line, report, unit_of)


def sample(line: str, report: str, unit_of: Callable[[dict[str, Any]], float]) -> Sample:
    """Read the line of a receiver, and that of its sender."""
    got = json.loads(line)
    return Sample(unit_of(got), got.get("cpu_s", 0.0) / got["seconds"],
                  json.loads(report) if report.strip() else {})


def alone(command: Sequence[str | Path], unit_of: Callable[[dict[str, Any]], float]) -> Sample:
    """Run one program to its end; its last line is a line of JSON."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          check=False, timeout=600)
    if done.returncode:
        raise BenchError(f"{Path(command[0]).name}: {done.stderr.strip()}")
    return sample(done.stdout.splitlines()[-1], "", unit_of)


def gbps(got: dict[str, Any]) -> float:
    """Payload in Gb/s."""
    return float(got["bytes"]) * 8e-9 / float(got["seconds"])


def read_line(process: subprocess.Popen[Any], patience_s: float) -> str:
    """Read the next line of a program; empty if it ended or took too long.

    It is read byte by byte, past Python's buffer: lines that lay there would be ready for nobody
    that waits for the pipe.
    """
    assert process.stdout is not None
    pipe, line, end_s = process.stdout.fileno(), b"", time.monotonic() + patience_s
    with selectors.DefaultSelector() as waits:
        waits.register(pipe, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not waits.select(max(end_s - time.monotonic(), 0)):
                return ""
            if not (byte := os.read(pipe, 1)):
                break
            line += byte
    return line.decode()


def _failure(command: Sequence[str | Path], process: subprocess.Popen[Any]) -> BenchError:
    process.kill()
    said = process.stderr.read().strip() if process.stderr else ""
    return BenchError(f"{Path(command[0]).name} failed: {said or 'it said nothing'}\n"
                      f"  the command was {' '.join(map(str, command))}")
