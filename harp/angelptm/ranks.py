"""The ranks of a job: gathers, reductions, and one error at all of them.

Two groups of torch.distributed serve an engine, over the backend that the script has chosen:

    data      gathers of parameters and reductions of gradients, in the order of the plan: the
              worker's thread makes them, or the main thread while the worker is at rest
    control   one small exchange a step, and those of plans and checkpoints: the main thread

A reduction sends each rank its part of a page and adds up what came in the order of ranks. That is
as many bytes as any reduce-scatter sends (Thakur et al., IJHPCA 19(1), 2005, section 4.2), and the
sum of an element has the same bits wherever a page is cut.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from harp.angelptm.page_plan import CapacityError
from harp.lightcc.failure import GroupError, name_ranks
from harp.lightcc.torch_base.single import all_gather_single

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import timedelta

log = logging.getLogger("harp.angelptm")

BACKEND = "lightcc"
REPORT_S = 5.0
"""Time for which a rank that sees a failure waits for others to say why."""
LOOK_S = 0.05


class RankError(RuntimeError):
    """The ranks cannot go on together; the message is one sentence and names a rank."""


def join_job(backend: str = BACKEND, *, alone: bool = False) -> None:
    """Join the job that the environment describes, unless somebody did so.

    A rank that is ``alone`` makes a job of its own if it is to.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if (several or alone) and not dist.is_initialized():
        import harp.lightcc.torch  # noqa: F401  (it registers the backend)
        own: dict[str, Any] = {}
        if not several:
            own = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
            os.environ.setdefault("LOCAL_RANK", "0")  # scripts read it, as launchers set it
        dist.init_process_group(backend, **own)


def find_ranks() -> Ranks | None:
    """Give the ranks of the job, or None if there is one only."""
    join_job()
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return Ranks()


def alike(ranks: Ranks | None) -> AbstractContextManager[None]:
    """Raise at all ranks what one raises."""
    return ranks.alike() if ranks else nullcontext()


class Ranks:
    """The calls among ranks: each is made by all of them, and raises RankError."""

    made = 0

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._key = f"harp.angelptm/{Ranks.made}"
        Ranks.made += 1
        store = dist.distributed_c10d._get_default_store()
        self._store = store.clone() if hasattr(store, "clone") else store
        with self._calls("group"):
            self._data, self._control = (dist.new_group(timeout=_timeout()) for _ in range(2))

    # Data

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Give all ranks the first one's tensor."""
        with self._calls("broadcast"):
            dist.broadcast(tensor, 0, group=self._data)

    def gather(self, whole: torch.Tensor, own: torch.Tensor) -> None:
        """Fill a tensor with the parts of all ranks."""
        with self._calls("gather of parameters"):
            all_gather_single(whole, own, group=self._data)

    def exchange(self, received: torch.Tensor, given: torch.Tensor) -> None:
        """Send each rank its part of a tensor, and receive one from each."""
        with self._calls("reduction of gradients"):
            dist.all_to_all_single(received, given, group=self._data)

    # Control

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """Give all ranks the numbers of all."""
        own = torch.tensor(list(numbers), dtype=torch.float64)
        whole = torch.empty(self.ranks * len(own), dtype=torch.float64)
        with self._calls("meeting of all ranks"):
            all_gather_single(whole, own, group=self._control)
        rows: list[list[float]] = whole.view(self.ranks, -1).tolist()
        return rows

    def slowest(self, seconds: list[float]) -> list[float]:
        """Give the longest of each duration, so that all ranks choose alike."""
        return [max(each) for each in zip(*self.gather_numbers(seconds), strict=True)]

    def check_same(self, what: Mapping[str, Any]) -> None:
        """Compare what must be the same at all ranks, by its name."""
        first, *others = self._objects(dict(what))
        for rank, other in enumerate(others, 1):
            for name in [*(name for name in other if name not in first), *first]:
                own, its = (about.get(name, "none") for about in (first, other))
                if own != its:
                    raise RankError(f"rank {rank} has {name}: {its}, and rank 0 has {own}: all "
                                    "ranks must have the same")

    def check_steps(self, sums: Sequence[float]) -> None:
        """Compare sums of what the ranks did in a step."""
        for rank, other in enumerate(sums):
            if other != sums[0]:
                raise RankError(f"rank {rank} used other parameters than rank 0 in this step, or "
                                "in another order: the ranks' models must go the same way")

    def _objects(self, own: Any) -> list[Any]:
        objects: list[Any] = [None] * self.ranks
        with self._calls("comparison"):
            dist.all_gather_object(objects, own, group=self._control)
        return objects

    # Failures

    def fail(self, error: BaseException) -> None:
        """Let the other ranks know why this one does not go on."""
        with contextlib.suppress(Exception):  # whatever else fails now follows from this error
            self._store.set(f"{self._key}/why/{self.rank}", _sentence(error))
        for group in (self._data, self._control):
            with contextlib.suppress(Exception):
                group.abort()

    def close(self) -> None:
        """Leave the groups."""
        for group in (self._data, self._control):
            with contextlib.suppress(Exception):  # one that has failed cannot be left in order
                dist.destroy_process_group(group)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Let the other ranks know of an error of this one."""
        try:
            yield
        except RankError:
            raise
        except Exception as error:
            self.fail(error)
            raise

    @contextmanager
    def alike(self) -> Iterator[None]:
        """Raise at all ranks what one raises: at the others an error that names it."""
        error = None
        try:
            yield
        except (OSError, ValueError, CapacityError) as found:
            error = found
        sentences = self._objects(None if error is None else _sentence(error))
        if error is not None:
            raise error
        for rank, other in enumerate(sentences):
            if other is not None:
                raise RankError(f"rank {rank}: {other}")

    @contextmanager
    def _calls(self, call: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:
            raise RankError(self._why(call, error)) from error

    def _why(self, call: str, error: Exception) -> str:
        """Say why a call failed: the reason of the rank that had one, or the rank that is silent.

        The backend lightcc names the rank itself.
        """
        said = str(error).strip().partition("\n")[0]
        named = isinstance(error, GroupError)
        calls = {self.rank: call}
        end_s = time.monotonic() + (LOOK_S if named else REPORT_S)
        try:
            self._store.set(f"{self._key}/saw/{self.rank}", call)
            while len(calls) < self.ranks and time.monotonic() < end_s:
                for rank in set(range(self.ranks)) - set(calls):
                    if why := self._report("why", rank):
                        return f"rank {rank}: {why}"
                    if saw := self._report("saw", rank):
                        calls[rank] = saw
                time.sleep(LOOK_S)
        except (RuntimeError, ValueError):  # the store went with its rank
            return said if named else f"rank 0, or the owner of the job's store, is gone: {said}"
        if silent := sorted(set(range(self.ranks)) - set(calls)):
            return said if named else (f"{name_ranks(silent)} {'do' if silent[1:] else 'does'} not "
                                       f"answer: {said}")
        for rank in sorted(calls):
            if not named and calls[rank] != calls[0]:
                return (f"rank {rank} waits in a {calls[rank]}, and rank 0 in a {calls[0]}: {said}")
        return said

    def _report(self, what: str, rank: int) -> str | None:
        key = f"{self._key}/{what}/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else None


def _sentence(error: BaseException) -> str:
    """Give an error's sentence, without a system error's number."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _timeout() -> timedelta | None:
    """The time limit of the script's own group: torch gives it to no new one."""
    group: Any = dist.group.WORLD
    with contextlib.suppress(AttributeError, RuntimeError):
        limit: timedelta = group._get_backend(torch.device("cpu")).options._timeout
        return limit
    from datetime import timedelta
    with contextlib.suppress(AttributeError):
        return timedelta(seconds=group._group.timeout_s)
    return None
