"""Averages of DDP's buckets over a group of any backend: within a host by it, between by LightCC.

A bucket is divided among the ranks of a host. DDP's own backend (NCCL on GPUs) sums it there, so
that each rank has one part of the host's sum; LightCC sums the parts of the hosts, as the LIGHT_*
variables say; and the backend gives all ranks of the host all parts.

The backend's calls have one order at all ranks, as it needs: the sums of all buckets of a step, as
they come, then the gathering of all. A thread does in the buckets' order what waits, so that
gradients are computed meanwhile. A tensor on a GPU has a stream for it, and its part alone is
copied to the host.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from harp.lightcc.group import Between, ErrorPart
from harp.lightcc.hosts import find_hosts
from harp.lightcc.works import LightWork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harp.lightcc.torch import LightGroup

WITHOUT_REDUCE_SCATTER = {"mpi"}
"""Backends that sum all of a bucket at every rank of a host instead."""


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


class BucketWork(LightWork):
    """What DDP is given of it."""

    def _new_future(self) -> torch.futures.Future[Any]:
        gradients, = self._results
        assert isinstance(gradients, torch.Tensor)
        device = gradients.device
        return torch.futures.Future(devices=[device] if device.type == "cuda" else None)


class DividedGroup:
    """What `harp.lightcc.hook` asks of a group, for one of another backend.

    All ranks of ``group`` make it, in the same order as other groups. ``host`` is the name of this
    rank's host where ranks of one are not to be found by what they share.

    Raises:
        ValueError: the same at all ranks, where hosts have different numbers of ranks.

    """

    def __init__(self, group: dist.ProcessGroup | None, host: str | None = None) -> None:
        members = sorted(dist.get_process_group_ranks(group))  # as the groups made of them are
        light = dist.new_group(members, backend="lightcc", use_local_synchronization=True)
        self._light: LightGroup = light
        names: list[Any] = [None] * len(members)
        dist.all_gather_object(names, host or self._light.place, group=light)
        try:
            self._hosts = find_hosts(names, self._light.rank())
        except ValueError:
            dist.destroy_process_group(light)
            raise
        backend = dist.get_backend(group)
        self._scatters = backend not in WITHOUT_REDUCE_SCATTER
        self._within = dist.new_group([members[rank] for rank in self._hosts.mine],
                                      backend=backend, use_local_synchronization=True)
        self._place = self._hosts.mine.index(self._light.rank())
        self._thread = ThreadPoolExecutor(1, "lightcc buckets")
        self._begun: list[Bucket] = []
        self._stream: Any = None

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
        self._begun.append(bucket)
        if self._scatters:
            bucket.within = _scatter_sum(bucket.part, bucket.whole, self._within)
        else:
            bucket.within = dist.all_reduce(bucket.whole, group=self._within, async_op=True)
        self._then(bucket, between)
        return BucketWork([bucket.over], [gradients])

    def end_step(self) -> None:
        """Gather all buckets, now that all have come."""
        begun, self._begun = self._begun, []
        for step in (self._gather, self._end):
            for bucket in begun:
                self._then(bucket, step)

    def _then(self, bucket: Bucket, step: Callable[[Bucket], None]) -> None:
        self._thread.submit(self._carry_out, bucket, step)

    def _carry_out(self, bucket: Bucket, step: Callable[[Bucket], None]) -> None:
        if bucket.over.done():  # it has failed
            return
        try:
            with self._on_stream(bucket):
                step(bucket)
        except Exception as error:  # nobody else would hear of it
            bucket.over.set_exception(error)

    @contextlib.contextmanager
    def _on_stream(self, bucket: Bucket) -> Iterator[None]:
        """Let nothing here wait in the stream of the caller's kernels."""
        if not bucket.gradients.is_cuda:
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(bucket.gradients.device)
        for tensor in (bucket.gradients, bucket.whole, bucket.part):
            tensor.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            yield

    def _sum_between(self, bucket: Bucket, error: torch.Tensor | None = None,
                     ratio: float | None = None, *, sampled: bool = False) -> None:
        bucket.within.wait()
        if not self._scatters:
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
        bucket.within.wait()
        if bucket.whole is not bucket.gradients:
            bucket.gradients.copy_(bucket.whole[:bucket.gradients.numel()])
        if self._stream is not None:
            self._stream.synchronize()
        bucket.over.set_result(None)


def _scatter_sum(part: torch.Tensor, whole: torch.Tensor, group: Any) -> Any:
    call = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)  # torch 2.13's name
    return call(part, whole, group=group, async_op=True)


def _gather_parts(whole: torch.Tensor, part: torch.Tensor, group: Any) -> Any:
    call = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    return call(whole, part, group=group, async_op=True)
