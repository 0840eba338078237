"""LightCC between replicas under torchft's Manager, which lets them die and come again.

    from harp.lightcc.torchft import ProcessGroupLightCC
    manager = torchft.Manager(pg=ProcessGroupLightCC(timeout=timedelta(seconds=30)), ...)

The Manager makes a quorum of the replicas that live and calls `configure` when it changes: the old
group is aborted and left, and a new one is made in the same process. A replica that is killed is
an error of the call that is under way; torchft then does not commit the step.

With ``bits=8`` sums of float32 are sent in 8 bits (`harp.lightcc.few_bits`), as DiLoCo's
differences did for INTELLECT-1 (arXiv 2412.01152): torchft's own ``should_quantize`` needs a GPU.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from harp.lightcc.few_bits import FewBits
from harp.lightcc.settings import WHOLE_BITS
from harp.lightcc.torch.backend import LightGroup, find_reduction
from harp.lightcc.torch.work import LightWork
from harp.lightcc.torch_base.tensors import flat_bytes, lies_flat

if TYPE_CHECKING:
    from collections.abc import Sequence

BITS = (WHOLE_BITS, 8, 4)
"""Not 2: what is lost is not kept, since torchft's tensors are new ones in each round."""


class PlainWork(dist.Work):
    """A work with a future that runs callbacks at once, in the caller's thread, when it is over.

    Futures of C++ do the same, and torchft chains callbacks that must not run before `then`
    returns. LightCC's own futures have a thread for them, in which they may call collectives.
    """

    def __init__(self, work: LightWork, *, raises: bool) -> None:
        super().__init__()
        self._work, self._raises = work, raises

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it is over; raises its error, or leaves it to the future."""
        try:
            return self._work.wait(timeout or timedelta(0))
        except RuntimeError:
            if self._raises or not self._work.is_completed():
                raise
            return False

    def is_completed(self) -> bool:
        """Whether it is over."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """Whether it is over without an error."""
        return self._work.is_success()

    def exception(self) -> Any:
        """Return its error, or None."""
        return self._work.exception()

    def result(self) -> Any:
        """Return the tensors with the result."""
        return self._work.result()

    def block_current_stream(self) -> None:
        """Wait: there is no stream."""
        self._work.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors."""
        if not self._work.is_completed():
            return self._work.get_future()
        over: torch.futures.Future[Any] = torch.futures.Future()
        if self._work.is_success():
            over.set_result(self._work.result())
        else:
            over.set_exception(self._work.exception())
        return over


class ProcessGroupLightCC(ProcessGroupWrapper):
    """A process group of torchft over `LightGroup`.

    Args:
        timeout: of a new group's making and of each call; a replica that is silent for it, or for
            30 s if that is less, counts as dead.
        managed: whether it is a Manager's, which looks for errors in futures and by `errored`;
            ``wait`` raises none then, since torchft's DistributedDataParallel (0.2.0) ends by an
            AssertionError where it does.
        bits: of a value of a sum of float32 on the host that has more than LIGHT_SMALL_THRESHOLD
            bytes: 8 or 4, and 32 for whole ones. All replicas give the same.

    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60), *, managed: bool = True,
                 bits: int = WHOLE_BITS) -> None:
        super().__init__(timeout)
        if bits not in BITS:
            raise ValueError(f"bits is {bits}; allowed are {', '.join(map(str, BITS))}")
        self._managed, self._bits = managed, bits

    def _create_pg(self, store: Any, rank: int, world_size: int) -> LightGroup:
        return LightGroup(store, rank, world_size, self._timeout)

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> PlainWork:
        """Reduce tensors, each in place."""
        if (work := self._in_few_bits(tensors, opts)) is not None:
            return self._wrap_work(work, opts)
        made: PlainWork = super().allreduce(tensors, opts)
        return made

    def _in_few_bits(self, tensors: Sequence[torch.Tensor], opts: Any) -> LightWork | None:
        """Begin a sum in few bits; None where it is to be whole."""
        group, tensor = self._pg, tensors[0]
        if (self._bits == WHOLE_BITS or group is None or len(tensors) > 1
                or tensor.dtype != torch.float32 or not lies_flat(tensor)
                or tensor.nbytes <= group.settings.small_bytes):
            return None
        reduction = find_reduction(opts)
        if reduction not in {"sum", "avg"}:
            return None
        call = FewBits(group.callbacks.program_group, tensor.numel(), self._bits)
        work = LightWork([call.allreduce(flat_bytes(tensor).view(np.float32),
                                         average=reduction == "avg")], tensors)
        work.callbacks = group.callbacks
        return work

    def _wrap_work(self, work: LightWork, opts: object) -> PlainWork:  # noqa: ARG002  (torchft gives it)
        return PlainWork(work, raises=not self._managed)

    def abort(self, errored: bool = True) -> None:
        """Fail what was begun, and leave the group."""
        group = self._pg
        super().abort(errored)
        if group is not None:
            group.shutdown()

    def shutdown(self) -> None:
        """Leave the group."""
        group = self._pg
        super().shutdown()
        if group is not None:
            group.shutdown()

    def errored(self) -> Exception | None:
        """Give the error that ended the group, if it has failed."""
        sentence = None if self._pg is None else self._pg.failure
        return None if sentence is None else RuntimeError(sentence)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of groups that are made from now on."""
        self._timeout = timeout

    def getBackendName(self) -> str:  # noqa: N802  (torch's spelling)
        """Give the name in torchft's way."""
        return "torchft-lightcc"
