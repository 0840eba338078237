"""Arms that need a NIC with zero copy: one run of the emulated machine measures all of them.

The machine (lab/vm.py) boots once, and its script runs every arm in turn, round after round; each
arm then returns its own samples. The stack's engines have threads that sleep when they are idle: a
spinning CPU would wait for frames that another thread of the host moves.
"""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.arms import TCP, Bench, Sample, build, gbps, sample
from bench.subject import BenchError
from harp.net.nics import ZERO_COPY_MTU_BYTES
from lab import vm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

SENDER = ("10.0.0.1", "eth0", "02:00:00:00:00:01")
RECEIVER = ("10.0.0.2", "eth1", "02:00:00:00:00:02")

# A receiver in the peer namespace, a sender here once it is ready; "ready HANDLE" is passed on. The
# options of a side are words of $receive and $send.
SCRIPT = """
arm() {
    echo "arm $1"
    mkfifo ready
    peer $receive >ready & receiver=$!
    { read word handle
      $send ${handle:+--handle $handle} >report & sender=$!
      cat; } <ready
    rm ready
    wait $receiver || echo "failed $1"
    kill $sender 2>/dev/null
    wait $sender 2>/dev/null
}
"""


def commands(bench: Bench) -> dict[str, tuple[list[str], list[str]]]:
    """Receiver and sender of every arm, by its name."""
    window = ["--cpu", "1", "--seconds", str(bench.seconds)]
    xdp = {name: (["xdp_blast", "receive", RECEIVER[1], *options, *window],
                  ["xdp_blast", "send", SENDER[1], *options, "--cpu", "0", "--seconds", "3600",
                   "--to-mac", RECEIVER[2], "--from-ip", SENDER[0], "--to-ip", RECEIVER[0]])
           for name, options in {"raw zero copy": [], "raw copy mode": ["--copy"]}.items()}
    tcp = {name: (["tcp_blast", "receive", *options, *window],
                  ["tcp_blast", "send", *options, "--cpu", "0", "--to", RECEIVER[0]])
           for name, options in TCP.items()}
    common = ["--port", "xdp", "--stream", "--drafts", "--thread"]
    harp = {name: (["harp_bench", "receive", *common, "--interface", RECEIVER[1], *options,
                    *window],
                   ["harp_bench", "send", *common, "--interface", SENDER[1], *options, "--cpu",
                    "0"])
            for name, options in {"HARP, zero copy": [], "HARP, copy mode": ["--copy"]}.items()}
    return {**harp, **xdp, **tcp}


def emulated_at(mtu: int, *names: str) -> Callable[
        [Bench], AbstractContextManager[dict[str, Callable[[], Sample]]]]:
    """Return the place with two virtio_net NICs on a hub, both in one machine.

    Its arms are those that are named, or all. HARP has the largest MTU that zero copy takes, where
    that is less.
    """
    @contextmanager
    def group(bench: Bench) -> Iterator[dict[str, Callable[[], Sample]]]:
        wanted = {name: arm for name, arm in commands(bench).items() if not names or name in names}
        found: dict[str, list[Sample]] = {}

        def arm(name: str) -> Callable[[], Sample]:
            def take() -> Sample:
                if not found:
                    found.update(run(bench, wanted, mtu=mtu))
                return found[name].pop(0)
            return take

        yield {name: arm(name) for name in wanted}
    return group


def run(bench: Bench, wanted: dict[str, tuple[list[str], list[str]]],
        programs: Sequence[Path] = (), mtu: int = 1500) -> dict[str, list[Sample]]:
    """Boot the machine and take every arm as often as there are rounds.

    ``programs`` defaults to those of bench/c that the arms name.
    """
    steps = [SCRIPT]
    for _ in range(bench.rounds):
        for name, (receive, send) in wanted.items():
            own = min(mtu, ZERO_COPY_MTU_BYTES) if name.startswith("HARP") else mtu
            steps += [f"ip link set eth0 mtu {own}; peer ip link set eth1 mtu {own}",
                      f"receive={shlex.quote(shlex.join(receive))} "
                      f"send={shlex.quote(shlex.join(send))} arm {shlex.quote(name)}"]
    names = {receive[0] for receive, _ in wanted.values()} if not programs else set()
    programs = programs or [*map(build, sorted(names))]
    timeout_s = 120 + (4 * bench.seconds + 5) * bench.rounds * len(wanted)
    try:
        done = vm.run("\n".join(steps), programs, timeout_s=timeout_s)
    except vm.MachineError as error:
        raise BenchError(str(error)) from error
    return read(done.output, bench.rounds, list(wanted))


def read(output: str, rounds: int, names: list[str]) -> dict[str, list[Sample]]:
    """Sort the machine's lines by arm; every arm must have its rounds."""
    found: dict[str, list[Sample]] = {name: [] for name in names}
    name = ""
    for line in output.splitlines():
        if line.startswith("arm "):
            name = line.removeprefix("arm ")
        elif line.startswith("{") and name:
            found[name].append(sample(line, "", gbps))
    for name, samples in found.items():
        if len(samples) != rounds:
            raise BenchError(f"{name} gave {len(samples)} figures of {rounds} in the emulated "
                             f"machine, which said:\n{output}")
    return found
