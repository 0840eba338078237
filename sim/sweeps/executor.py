"""Where points run: on all cores of this machine, or on the workers of a Dask cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.answer.parallel import each_shared
from sim.sweeps.study import run_point

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from sim.sweeps.study import Outcome, Study


def each_outcome(study: Study, points: Sequence[tuple[str, tuple[str, ...]]],
                 workers: int | None = None,
                 dask: str | None = None) -> Generator[Outcome, None, None]:
    """Run points (key and changes), and give each outcome as soon as it is there.

    Args:
        study: what the points share.
        points: those to run.
        workers: processes of this machine; one for each core where None.
        dask: address of a Dask scheduler to run them instead.
    """
    from sim.sweeps.dask_cluster import each_on_dask

    if dask and points:
        yield from each_on_dask(dask, study, points)
    else:
        yield from each_shared(run_point, study, points, workers)
