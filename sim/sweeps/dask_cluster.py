"""Points on the workers of a Dask cluster.

A task is named by its point's key, so equal points are one task, and the scheduler gives the tasks
of a worker that dies to others. Workers need this version of HARP, and none of the sweep's files.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from sim.sweeps.study import Outcome, run_point, source_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sim.sweeps.study import Study

TIMEOUT_S = 10
"""How long a scheduler may take to answer."""


def check_dask() -> None:
    """Raise a usage error where the package is missing."""
    if find_spec("distributed") is None:
        raise click.UsageError("--dask needs the package distributed: pip install "
                               "'harp-stack[sweep]'")


def each_on_dask(address: str, study: Study,
                 points: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[Outcome]:
    """Yield outcomes of points (key and changes) in the order in which they are done."""
    from distributed import as_completed

    with _client(address) as client:
        # A task, not scattered data: if the worker that holds it dies, another makes it again.
        shared = client.submit(_shared, study, source_digest(), pure=True)
        futures = [client.submit(run_point, shared, point, key=f"sweep-{point[0]}")
                   for point in points]
        done = as_completed(futures, loop=client.loop, with_results=True, raise_errors=False)
        for future, result in done:
            if isinstance(result, Outcome):  # even if its worker has died since
                future.release()  # so that workers need not keep it
                yield result
            elif future.status in ("lost", "pending"):
                done.add(future)  # its worker died before it was fetched: another does it again
            else:
                raise click.ClickException(f"the Dask cluster at {address} gave up: "
                                           f"{_reason(future, result)}")


def _shared(study: Study, expected: str) -> Study:
    """Hand the study to a worker that has the same code."""
    if source_digest() != expected:
        raise RuntimeError("a worker has another version of HARP than this machine")
    return study


@contextmanager
def _client(address: str) -> Iterator[Any]:
    from distributed import Client

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors here are one sentence
    try:
        client = Client(address, timeout=TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise click.UsageError(f"--dask {address}: no Dask scheduler answers there; start one by "
                               "`dask scheduler`, and workers by `dask worker`") from error
    try:
        if not client.scheduler_info()["workers"]:
            raise click.UsageError(f"--dask {address}: the scheduler has no workers; start some by "
                                   f"`dask worker {address} --nthreads 1`")
        yield client
    finally:
        client.close(timeout=2)


def _reason(future: Any, result: Any) -> str:
    if future.status == "error":
        error = result[1] if isinstance(result, tuple) else result
        return str(error) or type(error).__name__
    return f"a task was {future.status}"
