"""The processes of ``harp run``: started, watched and ended together.

An elastic job goes on while at least ``--min-np`` ranks are left. With a discovery script
(`harp.cli.run.host_slots`), free slots get new processes and ranks on removed hosts leave. The
launcher asks the ranks to meet when a new rank waits or one must leave
(`harp.lightcc.horovod.rejoin`). A slot in which a process failed stays empty.

Each process leads a process group of its own, so that what it has started ends with it; the kernel
ends it should the launcher be killed. On another host the same is done by a shell at the end of
ssh, which ends the processes when the connection does.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harp.cli.io import drop_output
from harp.cli.run.here import is_here, is_loopback
from harp.cli.run.ssh import ssh_to
from harp.lightcc.horovod.rejoin import (
    ELASTIC,
    changed_key,
    failed_key,
    here_key,
    members_key,
)
from harp.lightcc.store import VARIABLE, StoreServer
from harp.parent import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL."""
CAUSE_S = 2.0
"""Time for a rank that another one reports as gone to end, so that it is named first."""
OUTPUT_GONE = -1
"""In the place of a rank's number: what ranks print cannot be written any more."""
INTERRUPTED = -2
"""The same: a signal asks for the end."""
LOOK_S = 0.1
"""Longest wait for an event: a signal that the kernel gives to another thread wakes nobody."""
GONE = re.compile(rb"\brank (\d+) is gone\b")
"""LightCC's message at the remaining ranks (`harp.lightcc.peers`)."""
CARRIED = ("HARP_", "HOROVOD_", "LIGHT_", "NCCL_", "OMP_", "PATH", "PYTHON", "LD_LIBRARY_PATH",
           "VIRTUAL_ENV")
"""Beginnings of the variables that a process on another host gets from here."""


@dataclass(frozen=True)
class Rank:
    """The place of a rank."""

    host: str
    rank: int
    local_rank: int
    local_size: int
    host_number: int


def place_ranks(hosts: Sequence[tuple[str, int]], number: int) -> list[Rank]:
    """Fill the hosts' slots in their order."""
    filled: list[tuple[str, int, int]] = []
    for at, (host, slots) in enumerate(hosts):
        taken = min(slots, number - sum(count for _, count, _ in filled))
        if taken > 0:
            filled.append((host, taken, at))
    ranks: list[Rank] = []
    for at, (host, count, _) in enumerate(filled):
        ranks += [Rank(host, len(ranks) + local, local, count, at) for local in range(count)]
    return ranks


def variables(rank: Rank, ranks: Sequence[Rank], address: str, port: int) -> dict[str, str]:
    """Give the variables of a rank, in torchrun's names and Horovod's."""
    peers = [other.host_number for other in ranks if other.local_rank == rank.local_rank]
    values = {"RANK": rank.rank, "WORLD_SIZE": len(ranks), "LOCAL_RANK": rank.local_rank,
              "LOCAL_WORLD_SIZE": rank.local_size, "GROUP_RANK": rank.host_number,
              "MASTER_ADDR": address, "MASTER_PORT": port,
              "HOROVOD_RANK": rank.rank, "HOROVOD_SIZE": len(ranks),
              "HOROVOD_LOCAL_RANK": rank.local_rank, "HOROVOD_LOCAL_SIZE": rank.local_size,
              "HOROVOD_CROSS_RANK": peers.index(rank.host_number),
              "HOROVOD_CROSS_SIZE": len(peers)}
    return {name: str(value) for name, value in values.items()}


class Job:
    """All ranks of a command.

    Args:
        ranks: where they run.
        command: the program and its arguments.
        environment: of this process; ranks here get all of it, others what `CARRIED` names.
        address: an address of this host that all hosts can reach.
        port: a free TCP port of rank 0's host.
        least: the job continues while this many ranks are left; 0 ends all with the first failure.
        ssh: gives the words that have another host run a command.
        most: free slots stay empty once there are this many ranks.
        hosts: gives the hosts and slots that there are now, where they may change.

    """

    def __init__(self, ranks: Sequence[Rank], command: Sequence[str],
                 environment: Mapping[str, str], address: str, port: int, least: int = 0,
                 ssh: Callable[[str], Sequence[str]] = ssh_to,
                 most: int | None = None,
                 hosts: Callable[[], Sequence[tuple[str, int]]] | None = None) -> None:
        self._ranks, self._least, self._command = list(ranks), least, command
        self._most, self._hosts = most, hosts
        self._members = {rank.rank for rank in ranks}
        self._failed: Counter[str] = Counter()
        self._leaving: set[int] = set()
        """Processes without a slot; they leave at the next meeting."""
        self._left: set[int] = set()
        self._refused: set[str] = set()
        self._environment, self._ssh = environment, ssh
        self._address, self._port = address, port
        self._here = is_loopback(address)
        self._server = StoreServer("127.0.0.1" if self._here else "")
        self._events: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._meeting = 1
        self._print = threading.Lock()
        self._live: dict[int, subprocess.Popen[bytes]] = {}
        self._readers: dict[int, list[threading.Thread]] = {}
        self._said_gone: dict[int, int] = {}
        """The first rank that each rank reported as gone."""
        self._unwritten: OSError | None = None
        """Why what ranks print could not be written."""

    def start(self) -> None:
        """Start all. Raises OSError; `end` ends those that were started."""
        for rank in self._ranks:
            self._live[rank.rank] = self._start(rank, self._meeting)
        for number, process in self._live.items():
            self._watch(number, process)

    def _start(self, rank: Rank, meeting: int) -> subprocess.Popen[bytes]:
        first = self._ranks[0].host
        own = self._shared_variables() | variables(
            rank, self._ranks, self._address if is_here(first) else first, self._port)
        if self._least:
            own[ELASTIC] = str(meeting)
        if is_here(rank.host):
            return _start_here(self._command, {**self._environment, **own})
        return _start_there(self._ssh(rank.host), self._command, self._environment, own)

    def _shared_variables(self) -> dict[str, str]:
        shared = {VARIABLE: self._server.variable(self._address), "PYTHONUNBUFFERED": "1"}
        several = max(rank.local_size for rank in self._ranks) > 1
        if several and "OMP_NUM_THREADS" not in self._environment:
            shared["OMP_NUM_THREADS"] = "1"  # as torchrun does: ranks share the cores
        return shared

    def _watch(self, number: int, process: subprocess.Popen[bytes]) -> None:
        readers = [threading.Thread(target=self._copy, args=(number, source, target), daemon=True)
                   for source, target in ((process.stdout, sys.stdout), (process.stderr,
                                                                          sys.stderr))]

        def wait() -> None:
            self._events.put((number, process.wait()))
        for thread in (*readers, threading.Thread(target=wait, daemon=True)):
            thread.start()
        self._readers[number] = readers

    def _copy(self, number: int, source: Any, target: Any) -> None:
        """Write the lines of a rank as they are, and read on where they cannot be written."""
        for line in source:
            if found := GONE.search(line):
                self._said_gone.setdefault(number, int(found[1]))
            with self._print:
                try:
                    target.buffer.write(b"[%d] %s" % (number, line.removesuffix(b"\n") + b"\n"))
                    target.buffer.flush()
                except OSError as error:
                    drop_output(target)  # the others' lines too; a full pipe would stop a rank
                    self._unwritten = self._unwritten or error
                    self._events.put((OUTPUT_GONE, 0))

    def interrupt(self) -> None:
        """Have `wait` raise KeyboardInterrupt; for handlers of signals.

        An exception out of a handler is lost where Python happens to run a destructor.
        """
        self._events.put((INTERRUPTED, 0))

    def wait(self) -> tuple[int, str]:
        """Wait for the end. Gives the status, and a sentence about what went wrong or none."""
        while self._live:
            try:
                number, status = self._events.get(timeout=LOOK_S)
            except queue.Empty:
                if self._least:
                    self._fill_slots()
                    self._call_meeting()
                continue
            if number == INTERRUPTED:
                raise KeyboardInterrupt
            if self._unwritten:
                self.end()
                return 1, f"{self._why_unwritten(self._unwritten)}; they were ended"
            self._take_leave(number)
            self._report_end_to_members(number, status)
            if status == 0 or number in self._left:
                continue
            if not self._least:
                number, status = self._find_cause(number, status)
            self._failed[self._ranks[number].host] += 1
            why = self._describe_end(number, status)
            left = len(self._live)
            if not self._least or left < self._least:
                self.end()
                status = status if status > 0 else 128 - status
                few = f", and {left} are fewer than {self._least}" if self._least else ""
                return status, why + few + ("; the others were ended" if left else "")
            with self._print:
                sys.stderr.write(f"{why}; {left} go on\n")
        self._finish_output()
        if self._unwritten:
            return 1, self._why_unwritten(self._unwritten)
        return 0, ""

    @staticmethod
    def _why_unwritten(error: OSError) -> str:
        return f"the output of the ranks cannot be written: {(error.strerror or '').lower()}"

    def _describe_end(self, number: int, status: int) -> str:
        return f"rank {number} on {self._ranks[number].host} ended with {ending(status)}"

    def _take_leave(self, number: int) -> None:
        end_group(self._live.pop(number), signal.SIGKILL)  # what it left behind

    def _find_cause(self, number: int, status: int) -> tuple[int, int]:
        """Give the rank, and its status, that failed on its own where another ended after it.

        It is chance which end is seen first: ranks hear of it before the process is gone.
        """
        ended, limit = {number: status}, time.monotonic() + CAUSE_S
        while True:
            for reader in self._readers[number]:
                reader.join(1.0)  # all that it said
            gone = self._said_gone.pop(number, None)
            while gone in self._live and (left := limit - time.monotonic()) > 0:
                with contextlib.suppress(queue.Empty):
                    other, ended[other] = self._events.get(timeout=left)
                    if other == INTERRUPTED:
                        raise KeyboardInterrupt
                    if other != OUTPUT_GONE:
                        self._take_leave(other)
            if gone is None or ended.get(gone, 0) == 0:
                return number, ended[number]
            number = gone

    # ---- Elastic jobs ----

    def _fill_slots(self) -> None:
        """Start processes in free slots, and let those leave that have none any more."""
        if not self._hosts or not self._members & set(self._live):
            return
        slots = {host: count for host, count in self._hosts() if self._is_reachable(host)}
        for host, count in slots.items():
            while len(self._there(host)) + self._failed[host] < count and not self._is_full():
                self._add(host)
        for host in {rank.host for rank in self._ranks}:
            self._leaving.update(self._there(host)[slots.get(host, 0):])

    def _is_reachable(self, host: str) -> bool:
        """Whether a host reaches this one."""
        if is_here(host) or not self._here:
            return True
        if host not in self._refused:
            self._refused.add(host)
            sys.stderr.write(f"{host} gets no ranks: the job began with this host alone; --address "
                             "gives the address of this host that other hosts can reach\n")
        return False

    def _there(self, host: str) -> list[int]:
        return [number for number in self._live
                if self._ranks[number].host == host and number not in self._leaving]

    def _is_full(self) -> bool:
        return self._most is not None and len(self._live) - len(self._leaving) >= self._most

    def _add(self, host: str) -> None:
        taken = {self._ranks[number].local_rank for number in self._there(host)}
        local = next(free for free in range(len(taken) + 1) if free not in taken)
        known = {rank.host: rank.host_number for rank in self._ranks}
        rank = Rank(host, len(self._ranks), local, len(taken) + 1, known.get(host, len(known)))
        self._ranks.append(rank)
        self._live[rank.rank] = self._start(rank, self._meeting)
        self._watch(rank.rank, self._live[rank.rank])

    def _call_meeting(self) -> None:
        """Ask the ranks to meet if that changes something; publish the members when all came."""
        store, live = self._server.store, set(self._live)
        members = self._members & live
        here = {int(number) for number in store.find(here_key(self._meeting))} & live
        if members and members <= here:
            meeting = sorted(here - self._leaving)
            store.set(members_key(self._meeting), json.dumps(meeting).encode())
            self._members, self._meeting = set(meeting), self._meeting + 1
            self._left |= self._leaving
        elif here - members or members & self._leaving:
            store.set(changed_key(self._meeting), b"")
        for number in (self._left if members else live) & live:
            self._left.add(number)  # nobody waits for it any more
            end_group(self._live[number], signal.SIGTERM)

    def _report_end_to_members(self, number: int, status: int) -> None:
        """Say that a member has ended: if their group is not made yet, they meet again at once."""
        if self._least and number in self._members:
            self._server.store.settle(failed_key(self._meeting - 1),
                                      self._describe_end(number, status).encode())

    def end(self) -> None:
        """End all processes: by SIGTERM, and after a while by SIGKILL."""
        for process in self._live.values():
            end_group(process, signal.SIGTERM)
        limit = time.monotonic() + GRACE_S
        for process in self._live.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, limit - time.monotonic()))
            end_group(process, signal.SIGKILL)
            process.wait()
        self._finish_output()

    def _finish_output(self) -> None:
        for reader in (one for readers in self._readers.values() for one in readers):
            reader.join(1.0)
        self._server.shutdown()
        self._server.server_close()


def _start_here(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            start_new_session=True,
                            preexec_fn=partial(end_with_parent, os.getpid()))  # noqa: PLW1509


def _start_there(ssh: Sequence[str], command: Sequence[str],
                 environment: Mapping[str, str],
                 own: Mapping[str, str]) -> subprocess.Popen[bytes]:
    carried = {name: value for name, value in environment.items() if name.startswith(CARRIED)}
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in {**carried, **own}.items()
                     if name.isidentifier())
    # The shell's input ends when this process does; then the whole process group there does.
    script = (f"cd {shlex.quote(str(Path.cwd()))} || exit; exec 3<&0; "
              f"env {given} {shlex.join(command)} </dev/null 3<&- & child=$!; "
              "(cat <&3 >/dev/null; kill -TERM -$$; sleep 5; kill -KILL -$$) & "
              "wait $child; status=$?; trap '' TERM; kill -TERM -$$; exit $status")
    return subprocess.Popen([*ssh, f"exec setsid -w sh -c {shlex.quote(script)}"],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            start_new_session=True)


def ending(status: int) -> str:
    """Name what `subprocess` gives as a process's status."""
    if status >= 0:
        return f"status {status}"
    first = signal.SIGRTMIN  # Python has no names for those between the first and the last
    return (f"SIGRTMIN+{-status - first}" if first < -status < signal.SIGRTMAX
            else signal.Signals(-status).name)


def end_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and to all that it started."""
    if process.stdin:
        process.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
