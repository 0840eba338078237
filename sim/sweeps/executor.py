"""Executors of points and cases: all cores of this machine, or the workers of a Dask cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from sim.answer.parallel import each_shared
from sim.sweeps.study import run_point

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from sim.sweeps.study import Outcome, Study

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Shared = TypeVar("Shared")


def each_answer(function: Callable[[Shared, Item], Answer], shared: Shared,
                tasks: Sequence[tuple[str, Item]], workers: int | None = None,
                dask: str | None = None) -> Iterator[Answer]:
    """Give ``function(shared, item)`` of every task, each as soon as it is there, in any order.

    Args:
        function: a function of a module, so that workers can import it.
        shared: first argument of all calls.
        tasks: a name and the second argument of each call; of those of one name one is made.
        workers: processes of this machine; one for each core where None.
        dask: address of a Dask scheduler to run them instead.
    """
    from sim.sweeps.dask_cluster import each_on_dask

    if dask and tasks:
        yield from each_on_dask(dask, function, shared, tasks)
    else:
        yield from each_shared(function, shared, [item for _, item in tasks], workers)


def each_outcome(study: Study, points: Sequence[tuple[str, tuple[str, ...]]],
                 workers: int | None = None,
                 dask: str | None = None) -> Generator[Outcome, None, None]:
    """Run points (key and changes) of a study, as `each_answer` does."""
    study = study.anywhere((changes for _, changes in points), elsewhere=dask is not None)
    tasks = [(f"sweep-{point[0]}", point) for point in points]
    yield from each_answer(run_point, study, tasks, workers, dask)
