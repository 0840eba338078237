"""Hierarchical DDP sums: the group's own backend inside a host, LightCC between hosts.

A bucket is divided among the ranks of a host. DDP's own backend (NCCL on GPUs) sums it there by a
reduce-scatter, so that each rank has one part of the host's sum; LightCC sums the parts between
hosts, as the LIGHT_* variables say; an all-gather of the backend gives all parts to all ranks of
the host.

The backend needs its calls in one order at all ranks: the reduce-scatters of a step's buckets, as
they come, then the all-gathers. A thread runs the steps that wait, in the buckets' order, so that
gradients are computed meanwhile. A tensor on a GPU has a stream for this, and only its part is
copied to the host.

If anything fails at a rank, it makes no more calls of the backend, so that no rank uses its parts,
and it fails LightCC's group: all ranks get the reason, whatever they wait for. Each of them fails
its buckets with that sentence and leaves the group of its host, where other ranks might wait for it
until the backend's timeout.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from harp.lightcc.failure import GroupError
from harp.lightcc.group import Between, ErrorPart
from harp.lightcc.torch.work import LightWork
from harp.lightcc.torch_base.single import all_gather_single, reduce_scatter_single

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from harp.lightcc.settings import LightSettings
    from harp.lightcc.torch.backend import LightGroup
    from harp.lightcc.torch.callbacks import Callbacks

WITHOUT_REDUCE_SCATTER = {"mpi"}
"""Backends that sum all of a bucket at every rank of a host instead."""
SHARE_OF_TIMEOUT = 0.9
"""Share of the backend's timeout: LightCC, which names the missing rank, must time out first."""
ABORT_S = 10.0
"""A backend may take this long to abort a group before the waiting buckets are failed."""


class Hosts(NamedTuple):
    """The ranks that a rank sums with."""

    mine: tuple[int, ...]
    """The ranks of its host."""
    across: tuple[int, ...]
    """One rank of each host, with the same part of a bucket."""


def find_hosts(names: Sequence[str], rank: int) -> Hosts:
    """Find them by the names of all ranks' hosts.

    >>> find_hosts(["a", "a", "b", "b"], 2)
    Hosts(mine=(2, 3), across=(0, 2))

    Raises:
        ValueError: the same at all ranks, where hosts have different numbers of ranks.

    """
    hosts: dict[str, list[int]] = {}
    for other, name in enumerate(names):
        hosts.setdefault(name, []).append(other)
    if len({len(ranks) for ranks in hosts.values()}) > 1:
        counts = ", ".join(str(len(ranks)) for ranks in hosts.values())
        raise ValueError(f"the hosts have {counts} ranks; a bucket is divided among the ranks of a "
                         "host, so all hosts must have the same number (a group of the backend "
                         "lightcc takes any)")
    mine = hosts[names[rank]]
    place = mine.index(rank)
    return Hosts(tuple(mine), tuple(ranks[place] for ranks in hosts.values()))


class BackendError(RuntimeError):
    """The backend has failed, often because of a failure that another rank sees better."""


class Bucket:
    """A bucket under way: its gradients, and the part of them that this rank sums."""

    def __init__(self, gradients: torch.Tensor, ranks: int, place: int, divisor: int) -> None:
        self.gradients, self.divisor = gradients, divisor
        self.elements = -(-gradients.numel() // ranks)
        missing = ranks * self.elements - gradients.numel()
        self.whole = torch.nn.functional.pad(gradients, (0, missing)) if missing else gradients
        self.part = self.whole.new_empty(self.elements)
        self.own = slice(place * self.elements, (place + 1) * self.elements)
        self.within: Any = None
        self.between: LightWork | None = None
        self.over: Future[None] = Future()

    def wait_within(self) -> None:
        """Wait for the call that the backend has begun."""
        work, self.within = self.within, None
        try:
            work.wait()
        except Exception as error:
            raise BackendError(str(error)) from error

    def succeed(self) -> None:
        """Complete the bucket, if it is not over."""
        with contextlib.suppress(InvalidStateError):
            self.over.set_result(None)

    def fail(self, sentence: str) -> None:
        """Fail the bucket, if it is not over."""
        with contextlib.suppress(InvalidStateError):
            self.over.set_exception(GroupError(sentence))


class BucketWork(LightWork):
    """The work of a bucket, for DDP."""

    def __init__(self, bucket: Bucket, callbacks: Callbacks) -> None:
        super().__init__([bucket.over], [bucket.gradients])
        self.callbacks = callbacks

    def _devices(self) -> list[torch.device] | None:
        gradients, = self._results
        assert isinstance(gradients, torch.Tensor)
        return None if gradients.is_cpu else [gradients.device]


class HierarchicalGroup:
    """The group that `harp.lightcc.hook` uses where DDP's group has another backend.

    All ranks of ``group`` make it, in the same order as other groups. ``host`` names this rank's
    host where ranks of a host share nothing that would identify it.

    Raises:
        ValueError: the same at all ranks, where hosts have different numbers of ranks.

    """

    def __init__(self, group: dist.ProcessGroup | None, host: str | None = None) -> None:
        members = sorted(dist.get_process_group_ranks(group))  # as the groups made of them are
        light = dist.new_group(members, backend="lightcc", use_local_synchronization=True,
                               timeout=_timeout_between(group))
        self._light: LightGroup = light
        names: list[Any] = [None] * len(members)
        dist.all_gather_object(names, host or self._light.place, group=light)
        try:
            self._hosts = find_hosts(names, self._light.rank())
        except ValueError:
            dist.destroy_process_group(light)
            raise
        self._within: Any = dist.new_group([members[rank] for rank in self._hosts.mine],
                                           backend=_backend_of(group),
                                           use_local_synchronization=True)
        self._place = self._hosts.mine.index(self._light.rank())
        self._begun: list[Bucket] = []
        self._under_way: set[Bucket] = set()
        self._has_failed = False
        self._sentence: str | None = None
        self._stream: Any = None
        self._steps: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: the backend may hold it for longer than the process wants to last.
        threading.Thread(target=self._serve_steps, daemon=True, name="lightcc buckets").start()
        self._light.when_over(self._light_is_over)

    def size(self) -> int:
        """Give the number of ranks."""
        return len(self._hosts.mine) * len(self._hosts.across)

    @property
    def settings(self) -> LightSettings:
        """The LIGHT_* variables that hold between hosts."""
        return self._light.settings

    def error_part(self, gradients: torch.Tensor) -> ErrorPart:
        """Return the elements for which a sparse average keeps an error; none where it is dense."""
        elements = -(-gradients.numel() // len(self._hosts.mine))
        first = min(self._place * elements, gradients.numel())
        part = gradients.new_empty(elements, device="meta")
        is_sparse = self._light.sparse_between(self._describe_between(gradients), part)
        return ErrorPart(first, min(elements, gradients.numel() - first) if is_sparse else 0,
                         len(self._hosts.across), elements if is_sparse else 0)

    def _describe_between(self, gradients: torch.Tensor) -> Between:
        return Between(self._hosts.across, gradients.nbytes)

    def allreduce(self, tensors: Sequence[torch.Tensor]) -> LightWork:
        """Sum a bucket in place. It is not over before `end_step`."""
        gradients, = tensors
        return self._sum_bucket(gradients, self._sum_between)

    def average_sparsely(self, gradients: torch.Tensor, error: torch.Tensor,
                         ratio: float | None = None, *, sampled: bool = False) -> LightWork:
        """Average a bucket in place, sparsely between hosts. It is not over before `end_step`."""
        between = partial(self._sum_between, error=error, ratio=ratio, sampled=sampled)
        return self._sum_bucket(gradients, between, self.size())

    def _sum_bucket(self, gradients: torch.Tensor, between: Callable[[Bucket], None],
             divisor: int = 1) -> LightWork:
        bucket = Bucket(gradients, len(self._hosts.mine), self._place, divisor)
        self._under_way.add(bucket)  # before the sentence is read, which is set before
        bucket.over.add_done_callback(lambda _: self._under_way.discard(bucket))
        if self._sentence is not None:
            bucket.fail(self._sentence)
        else:
            self._begun.append(bucket)
            self._run_step(self._sum_within, bucket)
            self._queue_step(between, bucket)
        return BucketWork(bucket, self._light.callbacks)

    def end_step(self) -> None:
        """Gather all buckets, now that all have come."""
        begun, self._begun = self._begun, []
        for step in (self._gather_bucket, self._end_bucket):
            for bucket in begun:
                self._queue_step(step, bucket)

    # ---- One step after the other ----

    def _queue_step(self, step: Callable[[Bucket], None], bucket: Bucket) -> None:
        self._steps.put(partial(self._run_step, partial(self._run_on_stream, step), bucket))

    def _serve_steps(self) -> None:
        for step in iter(self._steps.get, None):
            step()

    def _run_step(self, step: Callable[[Bucket], None], bucket: Bucket) -> None:
        if self._has_failed:  # the end of all buckets is to come
            return
        try:
            step(bucket)
        except Exception as error:  # no other code reports it
            self.fail(error)

    def _run_on_stream(self, step: Callable[[Bucket], None], bucket: Bucket) -> None:
        """Run a step on a stream of its own, so that it does not wait for the caller's kernels."""
        if bucket.gradients.is_cpu:
            step(bucket)
            return
        if self._stream is None:
            self._stream = torch.Stream(bucket.gradients.device)
        for tensor in (bucket.gradients, bucket.whole, bucket.part):
            tensor.record_stream(self._stream)
        with self._stream:
            step(bucket)

    def _can_reduce_scatter(self, bucket: Bucket) -> bool:
        backend = self._within._get_backend(bucket.gradients.device)
        return backend.name() not in WITHOUT_REDUCE_SCATTER

    def _sum_within(self, bucket: Bucket) -> None:
        if self._can_reduce_scatter(bucket):
            bucket.within = _scatter_sum(bucket.part, bucket.whole, self._within)
        else:
            bucket.within = dist.all_reduce(bucket.whole, group=self._within, async_op=True)

    def _sum_between(self, bucket: Bucket, error: torch.Tensor | None = None,
                     ratio: float | None = None, *, sampled: bool = False) -> None:
        bucket.wait_within()
        if not self._can_reduce_scatter(bucket):
            bucket.part.copy_(bucket.whole[bucket.own])
        if len(self._hosts.across) > 1:
            bucket.between = self._light.sum_between(
                bucket.part, self._describe_between(bucket.gradients), error, ratio,
                sampled=sampled)

    def _gather_bucket(self, bucket: Bucket) -> None:
        if bucket.between is not None:
            bucket.between.wait()
        if bucket.divisor > 1:
            bucket.part.div_(bucket.divisor)
        bucket.within = _gather_parts(bucket.whole, bucket.part, self._within)

    def _end_bucket(self, bucket: Bucket) -> None:
        bucket.wait_within()
        if bucket.whole is not bucket.gradients:
            bucket.gradients.copy_(bucket.whole[:bucket.gradients.numel()])
        if self._stream is not None:
            self._stream.synchronize()
        if not self._has_failed:  # else the backend may have been aborted, with whatever there is
            bucket.succeed()

    # ---- Failures ----

    def fail(self, error: Exception) -> None:
        """Fail the buckets of all ranks by what has failed here."""
        self._has_failed = True
        self._light.fail(error, is_symptom=isinstance(error, BackendError))

    def _light_is_over(self, sentence: str | None) -> None:
        """Fail the buckets by the sentence of LightCC's failure; None: the group is closed."""
        threading.Thread(target=self._end_buckets, args=(sentence,), daemon=True,
                         name="lightcc buckets' end").start()

    def _end_buckets(self, sentence: str | None) -> None:
        self._has_failed = True
        if sentence is not None:
            _abort_group(self._within)
        self._sentence = sentence or "the group is closed"
        for bucket in list(self._under_way):
            bucket.fail(self._sentence)
        self._begun = []
        self._steps.put(None)
        del self._within  # gloo leaves a group when nobody has it any more


def _abort_group(group: Any) -> None:
    """Make a backend give up its work in a group, and torch forget the group."""
    def abort() -> None:
        with contextlib.suppress(Exception):  # its owner may have destroyed it meanwhile
            give_up = getattr(dist.distributed_c10d, "_abort_process_group",  # from torch 2.6 on
                              dist.destroy_process_group)
            give_up(group)
    aborting = threading.Thread(target=abort, daemon=True)
    aborting.start()
    aborting.join(ABORT_S)


def _backend_of(group: dist.ProcessGroup | None) -> str:
    """Name a group's backend, or the one of each kind of device, as "cpu:gloo,cuda:nccl"."""
    name = str(dist.get_backend(group))
    return dist.get_backend_config(group) if name == "undefined" else name


def _timeout_between(group: dist.ProcessGroup | None) -> timedelta | None:
    """Give LightCC somewhat less time than the backend has, where that can be found."""
    own: Any = dist.group.WORLD if group is None else group
    options = [getattr(own._get_backend(device), "options", None) for device in own._device_types]
    return min((SHARE_OF_TIMEOUT * one._timeout for one in options if one is not None),
               default=None)


def _scatter_sum(part: torch.Tensor, whole: torch.Tensor, group: Any) -> Any:
    return reduce_scatter_single(part, whole, group=group, async_op=True)


def _gather_parts(whole: torch.Tensor, part: torch.Tensor, group: Any) -> Any:
    return all_gather_single(whole, part, group=group, async_op=True)
