"""A tuning table from logs or JSON of nccl-tests: one log for each choice, at the same sizes.

``nccl=own.log`` is a run with NCCL's own choice. The others were run with NCCL_ALGO and NCCL_PROTO,
which name them: ``Tree LL=tree-ll.log``. The mean of out-of-place and in-place times counts.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harp.collectives.protocol import PROTOCOLS
from harp.collectives.tuning import Communicator
from sim.answer.nccl_tuning import LEAST_GAIN, Size, Tuned, make_table
from sim.calibration.nccl_json import read_nccl
from sim.calibration.nccl_log import MOST_BYTES, NcclLog
from sim.network.nccl import Choice
from sim.schema.input_errors import Problem, TopologyError

if TYPE_CHECKING:
    from collections.abc import Sequence

OWN = "nccl"


def tune_measured(given: Sequence[str], nodes: int | None) -> tuple[Tuned, dict[str, Any]]:
    """Read ``CHOICE=LOG`` and give the table; click.UsageError where they do not fit together."""
    logs: dict[str, NcclLog] = {}
    files: list[str] = []
    digest = hashlib.sha256()
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or name in logs:
            raise click.UsageError(f"--measured {text}: give CHOICE=LOG, each choice once")
        content = _read(Path(path))
        logs[name] = read_nccl(content, path)
        files.append(Path(path).name)
        digest.update(f"{name}={content}".encode())
    if OWN not in logs or len(logs) < 2:
        raise click.UsageError("--measured needs NCCL's own choice (nccl=LOG) and at least one "
                               "that was forced")
    own = logs.pop(OWN)
    for name, log in logs.items():
        if (log.ranks, log.hosts) != (own.ranks, own.hosts):
            raise click.UsageError(f"--measured {name}: other ranks or hosts than in the log of "
                                   "NCCL's own choice")
    sizes = _sizes(own, {_choice(name): log for name, log in logs.items()})
    hosts = len(set(own.hosts)) or nodes
    if hosts is None:
        raise click.UsageError("the logs do not name their hosts: give --nodes")
    rows = tuple(make_table("allreduce", None, sizes))
    tuned = Tuned(Communicator(own.ranks, hosts, rows), {"allreduce": sizes}, len(sizes),
                  len(sizes))
    return tuned, {"kind": "measured", "files": files, "fingerprint": digest.hexdigest()[:16]}


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise TopologyError(str(path), Problem("too large", allowed=f"{MOST_BYTES} bytes"))
    return data.decode(errors="replace")


def _choice(name: str) -> Choice:
    algorithm, _, protocol = name.partition(" ")
    plans = {"Tree": "tree", "Ring": "ring"}
    known = {one.name: one for one in PROTOCOLS}
    if algorithm not in plans or protocol not in known:
        raise click.UsageError(f"--measured {name}: allowed are nccl, and Tree or Ring with LL, "
                               "LL128 or Simple, as 'Tree LL'")
    return Choice(plans[algorithm], known[protocol], 0.0)


def _means(log: NcclLog) -> dict[int, float]:
    times: dict[int, list[float]] = {}
    for row in log.rows:
        times.setdefault(row.size_bytes, []).append(row.time_s)
    return {size: sum(some) / len(some) for size, some in times.items()}


def _sizes(own: NcclLog, logs: dict[Choice, NcclLog]) -> list[Size]:
    """The best choice at each size of the log of NCCL's own choice."""
    means = {choice: _means(log) for choice, log in logs.items()}
    unforced = Choice("ring", PROTOCOLS[-1], 0.0)  # which it was, no log says
    found = []
    for nbytes, own_s in sorted(_means(own).items()):
        times = {choice: some[nbytes] for choice, some in means.items() if nbytes in some}
        best = min(times, key=lambda choice: times[choice], default=None)
        if best is None or own_s < LEAST_GAIN * times[best]:
            found.append(Size(nbytes, unforced, own_s, None, own_s))
        else:
            found.append(Size(nbytes, unforced, own_s, best, times[best]))
    return found
