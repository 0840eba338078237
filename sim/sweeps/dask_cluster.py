"""Tasks on the workers of a Dask cluster.

The scheduler gives the tasks of a worker that dies to others. Workers need this version of HARP,
and none of the files that a sweep or validation reads.

A task costs scheduler and client some 5 ms (measured), so one scheduler would keep no more than ten
workers busy with points of 50 ms. Items that are shorter than `TASK_S` therefore share a task: the
first few go alone, and show how long the others may be.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from sim.sweeps.study import source_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Shared = TypeVar("Shared")

TIMEOUT_S = 10
"""Longest time in which a scheduler must answer."""
TASK_S = 0.5
"""Time of the items that share a task."""
LEAST_TASKS = 4
"""Tasks for each thread that are made of the items at least, so that threads end together."""


class SchedulerGoneError(click.ClickException):
    """The scheduler ended, or can be reached no more, while tasks were on their way."""


def check_dask(address: str) -> None:
    """Raise a usage error where the package is missing, or no scheduler can have the address.

    A client that is given such an address ends with a traceback of its own, 20 s later.
    """
    if find_spec("distributed") is None:
        raise click.UsageError("--dask needs the package distributed: pip install "
                               "'harp-stack[sweep]'")
    from distributed.comm.addressing import get_address_host_port

    try:
        get_address_host_port(address)
    except ValueError:
        raise click.UsageError(f"--dask {address!r} is no address of a Dask scheduler; allowed: "
                               "host and port, such as tcp://10.0.0.1:8786") from None


@dataclass(frozen=True)
class Done(Generic[Answer]):
    """The answers of a task, which tell it from what Dask says of a task without some."""

    answers: list[Answer]
    each_s: float
    """Mean time of an item."""


def each_on_dask(address: str, function: Callable[[Shared, Item], Answer], shared: Shared,
                 tasks: Sequence[tuple[str, Item]]) -> Iterator[Answer]:
    """Yield answers of tasks (name and item) in the order in which they are done."""
    from distributed import as_completed

    with _client(address) as client:
        # A task, not scattered data: if the worker that holds it dies, another makes it again.
        held = client.submit(_checked, shared, source_digest(), pure=True)

        def submit(items: Sequence[tuple[str, Item]]) -> Any:
            return client.submit(_done, function, held, [item for _, item in items],
                                 key=items[0][0] if len(items) == 1 else _name_of(items))

        threads = max(sum(client.nthreads().values()), 1)
        rest = tasks[3 * threads:]
        done = as_completed([submit([task]) for task in tasks[:3 * threads]], loop=client.loop,
                            with_results=True, raise_errors=False)
        times_s: list[float] = []
        for future, result in done:
            if isinstance(result, Done):  # even if its worker has died since
                future.release()  # so that workers need not keep it
                times_s.append(result.each_s)
                if rest and len(times_s) >= 2 * threads:  # the first of each thread imports
                    for items in task_batches(rest, fmean(times_s[threads:]), threads):
                        done.add(submit(items))
                    rest = []
                yield from result.answers
            elif future.status in ("lost", "pending"):
                done.add(future)  # its worker died before it was fetched: another does it again
            elif future.status == "cancelled":
                raise SchedulerGoneError(f"the Dask scheduler at {address} has gone")
            else:
                raise click.ClickException(f"the Dask cluster at {address} gave up: "
                                           f"{_reason(future, result)}")


def task_batches(tasks: Sequence[tuple[str, Item]], each_s: float,
                 threads: int) -> Iterator[Sequence[tuple[str, Item]]]:
    """Batches that take `TASK_S` each; every thread has `LEAST_TASKS` of them at least."""
    size = max(1, min(int(TASK_S / max(each_s, 1e-6)), len(tasks) // (LEAST_TASKS * threads)))
    return (tasks[start:start + size] for start in range(0, len(tasks), size))


def _name_of(items: Sequence[tuple[str, Any]]) -> str:
    return sha256(json.dumps([name for name, _ in items]).encode()).hexdigest()


def _checked(shared: Shared, expected: str) -> Shared:
    """Hand what tasks share to a worker that has the same code."""
    if source_digest() != expected:
        raise RuntimeError("a worker has another version of HARP than this machine")
    return shared


def _done(function: Callable[[Shared, Item], Answer], shared: Shared,
          items: Sequence[Item]) -> Done[Answer]:
    start_s = perf_counter()
    answers = [function(shared, item) for item in items]
    return Done(answers, (perf_counter() - start_s) / len(items))


@contextmanager
def _client(address: str) -> Iterator[Any]:
    from distributed import Client

    for name in logging.root.manager.loggerDict:  # errors here are one sentence
        if name.partition(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        asyncio.run(asyncio.wait_for(_asked(address), TIMEOUT_S))
        client = Client(address, timeout=TIMEOUT_S, set_as_default=False)
    except Exception as error:  # whatever comes of talking to something else
        raise click.UsageError(f"--dask {address}: no Dask scheduler answers there; start one by "
                               "`dask scheduler`, and workers by `dask worker`") from error
    try:
        if not client.scheduler_info()["workers"]:
            raise click.UsageError(f"--dask {address}: the scheduler has no workers; start some by "
                                   f"`dask worker {address} --nthreads 1`")
        yield client
    finally:
        client.close(timeout=2)


async def _asked(address: str) -> None:
    """Ask a scheduler what it is: a client would wait for ever for a port of something else."""
    from distributed import Security, rpc

    async with rpc(address, connection_args=Security().get_connection_args("client")) as scheduler:
        await scheduler.identity()


def _reason(future: Any, result: Any) -> str:
    if future.status == "error":
        error = result[1] if isinstance(result, tuple) else result
        return str(error) or type(error).__name__
    return f"a task was {future.status}"
