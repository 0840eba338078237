"""Sums of DDP's buckets over a group of any backend: within a host by it, between by LightCC.

A bucket is divided among the ranks of a host. DDP's own backend (NCCL on GPUs) sums it there, so
that each rank has one part of the host's sum; LightCC sums the parts of the hosts, as the LIGHT_*
variables say; and the backend gives all ranks of the host all parts.

The backend's calls have one order at all ranks, as it needs: the sums of all buckets of a step, as
they come, then the gathering of all. A thread does in the buckets' order what waits, so that
gradients are computed meanwhile. A tensor on a GPU has a stream for it, and its part alone is
copied to the host.

A rank at which anything fails makes no more calls of the backend, so that nobody takes its parts
for good, and fails LightCC's group: that tells all ranks why, whatever they wait for. Each of them
ends its buckets by that sentence, and leaves the group of its host, in which others may wait for it
until the backend's timeout.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from harp.lightcc.failure import GroupError
from harp.lightcc.group import Between, ErrorPart
from harp.lightcc.hosts import find_hosts
from harp.lightcc.torch.work import LightWork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from harp.lightcc.torch.backend import LightGroup
    from harp.lightcc.torch.callbacks import Callbacks

WITHOUT_REDUCE_SCATTER = {"mpi"}
"""Backends that sum all of a bucket at every rank of a host instead."""
SHARE_OF_TIMEOUT = 0.9
"""Of the backend's: LightCC, which names who did not come, is to be late before it."""
ABORT_S = 10.0
"""So long a backend may take to abort a group before who waits for buckets is told."""


class BackendError(RuntimeError):
    """The backend has failed: often it follows from what another rank sees better."""


class Bucket:
    """A bucket on its way: its gradients, and what of them a rank of the host has."""

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
        """Wait for what the backend has begun."""
        work, self.within = self.within, None
        try:
            work.wait()
        except Exception as error:
            raise BackendError(str(error)) from error

    def succeed(self) -> None:
        """End it, if it has not ended."""
        with contextlib.suppress(InvalidStateError):
            self.over.set_result(None)

    def fail(self, sentence: str) -> None:
        """The same, by a failure."""
        with contextlib.suppress(InvalidStateError):
            self.over.set_exception(GroupError(sentence))


class BucketWork(LightWork):
    """What DDP is given of it."""

    def __init__(self, bucket: Bucket, callbacks: Callbacks) -> None:
        super().__init__([bucket.over], [bucket.gradients])
        self.callbacks = callbacks

    def _devices(self) -> list[torch.device] | None:
        gradients, = self._results
        assert isinstance(gradients, torch.Tensor)
        return [gradients.device] if gradients.device.type == "cuda" else None


class DividedGroup:
    """What `harp.lightcc.hook` asks of a group, for one of another backend.

    All ranks of ``group`` make it, in the same order as other groups. ``host`` is the name of this
    rank's host where ranks of one are not to be found by what they share.

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
        threading.Thread(target=self._serve, daemon=True, name="lightcc buckets").start()
        self._light.when_over(self._light_is_over)

    def size(self) -> int:
        """Give the number of ranks."""
        return len(self._hosts.mine) * len(self._hosts.across)

    def error_part(self, gradients: torch.Tensor) -> ErrorPart:
        """Tell for which elements a sparse average keeps an error; none where it is dense."""
        elements = -(-gradients.numel() // len(self._hosts.mine))
        first = min(self._place * elements, gradients.numel())
        part = gradients.new_empty(elements, device="meta")
        is_sparse = self._light.sparse_between(self._between(gradients), part)
        return ErrorPart(first, min(elements, gradients.numel() - first) if is_sparse else 0,
                         len(self._hosts.across), elements if is_sparse else 0)

    def _between(self, gradients: torch.Tensor) -> Between:
        return Between(self._hosts.across, gradients.nbytes)

    def allreduce(self, tensors: Sequence[torch.Tensor]) -> LightWork:
        """Sum a bucket in place. It is not over before `end_step`."""
        gradients, = tensors
        return self._sum(gradients, self._sum_between)

    def average_sparsely(self, gradients: torch.Tensor, error: torch.Tensor,
                         ratio: float | None = None, *, sampled: bool = False) -> LightWork:
        """Average a bucket in place, sparsely between hosts. It is not over before `end_step`."""
        between = partial(self._sum_between, error=error, ratio=ratio, sampled=sampled)
        return self._sum(gradients, between, self.size())

    def _sum(self, gradients: torch.Tensor, between: Callable[[Bucket], None],
             divisor: int = 1) -> LightWork:
        bucket = Bucket(gradients, len(self._hosts.mine), self._place, divisor)
        self._under_way.add(bucket)  # before the look at the sentence, which is set before these
        bucket.over.add_done_callback(lambda _: self._under_way.discard(bucket))
        if self._sentence is not None:
            bucket.fail(self._sentence)
        else:
            self._begun.append(bucket)
            self._carry_out(self._sum_within, bucket)
            self._then(between, bucket)
        return BucketWork(bucket, self._light.callbacks)

    def end_step(self) -> None:
        """Gather all buckets, now that all have come."""
        begun, self._begun = self._begun, []
        for step in (self._gather, self._end):
            for bucket in begun:
                self._then(step, bucket)

    # ---- One step after the other ----

    def _then(self, step: Callable[[Bucket], None], bucket: Bucket) -> None:
        self._steps.put(partial(self._carry_out, partial(self._beside, step), bucket))

    def _serve(self) -> None:
        for step in iter(self._steps.get, None):
            step()

    def _carry_out(self, step: Callable[[Bucket], None], bucket: Bucket) -> None:
        if self._has_failed:  # the end of all buckets is to come
            return
        try:
            step(bucket)
        except Exception as error:  # nobody else would hear of it
            self.fail(error)

    def _beside(self, step: Callable[[Bucket], None], bucket: Bucket) -> None:
        """Let nothing of a step wait in the stream of the caller's kernels."""
        if not bucket.gradients.is_cuda:
            step(bucket)
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(bucket.gradients.device)
        for tensor in (bucket.gradients, bucket.whole, bucket.part):
            tensor.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            step(bucket)

    def _scatters(self, bucket: Bucket) -> bool:
        backend = self._within._get_backend(bucket.gradients.device)
        return backend.name() not in WITHOUT_REDUCE_SCATTER

    def _sum_within(self, bucket: Bucket) -> None:
        if self._scatters(bucket):
            bucket.within = _scatter_sum(bucket.part, bucket.whole, self._within)
        else:
            bucket.within = dist.all_reduce(bucket.whole, group=self._within, async_op=True)

    def _sum_between(self, bucket: Bucket, error: torch.Tensor | None = None,
                     ratio: float | None = None, *, sampled: bool = False) -> None:
        bucket.wait_within()
        if not self._scatters(bucket):
            bucket.part.copy_(bucket.whole[bucket.own])
        if len(self._hosts.across) > 1:
            bucket.between = self._light.sum_between(
                bucket.part, self._between(bucket.gradients), error, ratio, sampled=sampled)

    def _gather(self, bucket: Bucket) -> None:
        if bucket.between is not None:
            bucket.between.wait()
        if bucket.divisor > 1:
            bucket.part.div_(bucket.divisor)
        bucket.within = _gather_parts(bucket.whole, bucket.part, self._within)

    def _end(self, bucket: Bucket) -> None:
        bucket.wait_within()
        if bucket.whole is not bucket.gradients:
            bucket.gradients.copy_(bucket.whole[:bucket.gradients.numel()])
        if self._stream is not None:
            self._stream.synchronize()
        if not self._has_failed:  # else the backend may have been aborted, with whatever there is
            bucket.succeed()

    # ---- Failures ----

    def fail(self, error: Exception) -> None:
        """Tell all ranks what has failed here; they end their buckets, and this one too."""
        self._has_failed = True
        self._light.fail(error, is_symptom=isinstance(error, BackendError))

    def _light_is_over(self, sentence: str | None) -> None:
        """Take the sentence by which LightCC's group has failed; None: it is closed."""
        threading.Thread(target=self._end_buckets, args=(sentence,), daemon=True,
                         name="lightcc buckets' end").start()

    def _end_buckets(self, sentence: str | None) -> None:
        self._has_failed = True
        if sentence is not None:
            _abort(self._within)
        self._sentence = sentence or "the group is closed"
        for bucket in list(self._under_way):
            bucket.fail(self._sentence)
        self._begun = []
        self._steps.put(None)
        del self._within  # gloo leaves a group when nobody has it any more


def _abort(group: Any) -> None:
    """Have a backend give up what is under way in a group, and torch forget the group."""
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
    call = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)  # torch 2.13's name
    return call(part, whole, group=group, async_op=True)


def _gather_parts(whole: torch.Tensor, part: torch.Tensor, group: Any) -> Any:
    call = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    return call(whole, part, group=group, async_op=True)
