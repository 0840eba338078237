"""The backend ``lightcc`` of torch.distributed, for tensors on the host.

>>> import harp.lightcc.torch  # doctest: +SKIP
>>> torch.distributed.init_process_group("lightcc")  # doctest: +SKIP

Whatever torch asks of a process group becomes calls of `harp.lightcc.group.Group`. Tensors that are
contiguous are worked on in place; others are copied and copied back. Works are done in the group's
thread; ``wait`` blocks the caller, a future may be chained.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from harp.lightcc.group import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Tensors = Sequence[torch.Tensor]

BACKEND = "lightcc"
_REDUCTIONS = {"SUM": "sum", "AVG": "avg", "PRODUCT": "product", "MIN": "min", "MAX": "max",
               "BAND": "band", "BOR": "bor", "BXOR": "bxor"}


class LightWork(dist.Work):
    """What was begun, and is over when all ``futures`` are and ``finish`` has been called."""

    def __init__(self, futures: Sequence[Future[Any]], results: Tensors | list[Tensors],
                 finish: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._results = results
        self._finish = finish
        self._left = len(futures)
        self._over: Future[None] = Future()
        self._torch_future: torch.futures.Future[Any] = torch.futures.Future()
        self._futures = list(futures)
        for future in self._futures:
            future.add_done_callback(self._one_is_over)
        if not futures:
            self._end()

    def _one_is_over(self, future: Future[Any]) -> None:
        if future.exception() is not None:
            if not self._over.done():
                self._over.set_exception(future.exception())
                self._torch_future.set_exception(future.exception())
            return
        self._left -= 1  # in the group's thread only
        if not self._left and not self._over.done():
            self._end()

    def _end(self) -> None:
        if self._finish:
            self._finish()
        self._over.set_result(None)
        self._torch_future.set_result(self._results)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until it is over; raises what it failed by."""
        seconds = timeout.total_seconds() or None
        done, _ = wait([self._over], seconds)
        if not done:
            raise RuntimeError(f"the collective was not over after {seconds:g} s")
        self._over.result()
        return True

    def is_completed(self) -> bool:
        """Whether it is over."""
        return self._over.done()

    def is_success(self) -> bool:
        """Whether it is over without an error."""
        return self._over.done() and self._over.exception() is None

    def exception(self) -> Any:
        """Give what it failed by, or None."""
        return self._over.exception() if self._over.done() else None

    def result(self) -> Any:
        """Give the tensors with the result."""
        return self._results

    def source_rank(self) -> int:
        """Rank that a message from anybody came from."""
        return int(self._futures[0].result())

    def get_future(self) -> torch.futures.Future[Any]:
        """Give a future of the tensors."""
        return self._torch_future


class LightGroup(dist.ProcessGroup):
    """A process group of torch over a `Group`."""

    def __init__(self, store: Any, rank: int, ranks: int, timeout: timedelta) -> None:
        super().__init__(rank, ranks)
        self._group = Group(rank, ranks, store, timeout.total_seconds())
        self._called = ""

    # torch asks for all four spellings.
    def getBackendName(self) -> str:  # noqa: N802  (torch's spelling)
        """Give the backend's name."""
        return BACKEND

    def name(self) -> str:
        """Give the backend's name."""
        return BACKEND

    @property
    def group_name(self) -> str:
        """The name that torch gave it."""
        return self._called

    def getGroupName(self) -> str:  # noqa: N802  (torch's spelling)
        """Give the name that torch gave it."""
        return self._called

    def setGroupName(self, name: str) -> None:  # noqa: N802  (torch's spelling)
        """Take a name."""
        self._called = name

    def _set_group_name(self, name: str) -> None:
        self._called = name

    # ---- Collectives ----

    def allreduce(self, tensors: Tensors, opts: Any = None) -> LightWork:
        """Reduce tensors, each in place."""
        reduction = _reduction(opts)
        return self._on_each(tensors, lambda data, tensor: self._group.allreduce(
            data, _dtype(tensor), reduction))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> LightWork:
        """Reduce tensors, each in place."""
        return self.allreduce(tensors, opts)

    def error_bytes(self, tensor: torch.Tensor) -> int:
        """Bytes of the error of a sparse average; 0 where the settings say that it is dense."""
        return self._group.error_bytes(tensor.numel() * tensor.element_size(), _dtype(tensor))

    def average(self, tensor: torch.Tensor, error: torch.Tensor | None) -> LightWork:
        """Average a tensor in place, sparsely where there is an error (`harp.lightcc.hook`)."""
        left = None if error is None else _bytes(error)[0]
        return self._on_each([tensor], lambda data, tensor: self._group.allreduce(
            data, _dtype(tensor), "avg", left))

    def broadcast(self, tensors: Tensors, opts: Any) -> LightWork:
        """Give all ranks the root's tensors."""
        return self._on_each(tensors, lambda data, _: self._group.broadcast(data, opts.rootRank))

    def reduce(self, tensors: Tensors, opts: Any) -> LightWork:
        """Reduce tensors; only the root's change."""
        if opts.rootRank == self.rank():
            return self.allreduce(tensors, opts)
        copies = [tensor.clone() for tensor in tensors]
        return self.allreduce(copies, opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors,
                  opts: Any = None) -> LightWork:  # noqa: ARG002  (torch gives it)
        """Give all ranks the tensors of all, which may differ in size."""
        made, finishes = [], []
        for parts, own in zip(outputs, inputs, strict=True):
            data, _ = _bytes(own)
            ins, finish = _all_bytes(parts)
            made.append(self._group.exchange("allgather", [data] * self.size(), ins))
            finishes.append(finish)
        return LightWork(made, list(outputs), _all(finishes))

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor,
                        opts: Any = None) -> LightWork:  # noqa: ARG002  (torch gives it)
        data, finish = _bytes(output)
        given, _ = _bytes(own)
        part = len(data) // self.size()
        if len(given) * self.size() != len(data):
            raise ValueError(f"all_gather_into_tensor: {self.size()} parts of {len(given)} B do "
                             f"not fill {len(data)} B")
        data[self.rank() * part:(self.rank() + 1) * part] = given
        return LightWork([self._group.allgather(data)], [output], finish)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors,
                                        opts: Any = None) -> LightWork:
        """Give all ranks the tensors of all, pair by pair."""
        return _joined([self._allgather_base(output, own, opts)
                        for output, own in zip(outputs, inputs, strict=True)], outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors],
                       opts: Any = None) -> LightWork:
        """Reduce lists of tensors, and give each rank the one of its number."""
        works = []
        for output, parts in zip(outputs, inputs, strict=True):
            if len({part.numel() for part in parts}) == 1:
                works.append(self._reduce_scatter_base(
                    output, torch.cat([part.reshape(-1) for part in parts]), opts))
            else:
                works.append(self._reduce_uneven(output, parts, opts))
        return _joined(works, outputs)

    def _reduce_uneven(self, output: torch.Tensor, parts: Tensors, opts: Any) -> LightWork:
        whole = torch.cat([part.reshape(-1) for part in parts])
        start = sum(part.numel() for part in parts[:self.rank()])
        work = self.allreduce([whole], opts)
        return LightWork([work._over], [output], lambda: output.copy_(
            whole[start:start + output.numel()].view_as(output)))

    def _reduce_scatter_base(self, output: torch.Tensor, whole: torch.Tensor,
                             opts: Any = None) -> LightWork:
        if whole.numel() != output.numel() * self.size():
            raise ValueError(f"reduce_scatter_tensor: {whole.numel()} elements are not "
                             f"{self.size()} times {output.numel()}")
        work = whole.clone(memory_format=torch.contiguous_format)  # the caller keeps its own
        data, _ = _bytes(work)
        start = self.rank() * output.numel()
        return LightWork(
            [self._group.reduce_scatter(data, _dtype(work), _reduction(opts))], [output],
            lambda: output.copy_(work.view(-1)[start:start + output.numel()].view_as(output)))

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors,
                                        opts: Any = None) -> LightWork:
        """Reduce and scatter, pair by pair."""
        return _joined([self._reduce_scatter_base(output, whole, opts)
                        for output, whole in zip(outputs, inputs, strict=True)], outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors,
                 opts: Any = None) -> LightWork:  # noqa: ARG002  (torch gives it)
        """Send a tensor to each rank and receive one from each."""
        outs = [_bytes(tensor)[0] for tensor in inputs]
        ins, finish = _all_bytes(outputs)
        return LightWork([self._group.exchange("all_to_all", outs, ins)], outputs, finish)

    def alltoall_base(self, output: torch.Tensor, given: torch.Tensor, output_sizes: Sequence[int],
                      input_sizes: Sequence[int], opts: Any = None) -> LightWork:
        """Send rows to each rank and receive rows from each; no sizes stand for equal ones."""
        parts = [tensor.split(sizes or tensor.shape[0] // self.size())
                 for tensor, sizes in ((output, list(output_sizes)), (given, list(input_sizes)))]
        if any(len(part) != self.size() for part in parts):
            raise ValueError(f"all_to_all_single: {len(parts[1])} parts to send and "
                             f"{len(parts[0])} to receive, for {self.size()} ranks")
        work = self.alltoall(parts[0], parts[1], opts)
        return LightWork([work._over], [output])

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> LightWork:
        """Give the root the tensors of all."""
        nothing = [_NO_BYTES] * self.size()
        outs = [*nothing]
        outs[opts.rootRank] = _bytes(inputs[0])[0]
        ins, finish = (_all_bytes(outputs[0]) if self.rank() == opts.rootRank
                       else (nothing, _nothing))
        return LightWork([self._group.exchange(f"gather at {opts.rootRank}", outs, ins)],
                         list(outputs), finish)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> LightWork:
        """Give each rank a tensor of the root's."""
        ins = [_NO_BYTES] * self.size()
        ins[opts.rootRank], finish = _bytes(outputs[0])
        outs = ([_bytes(tensor)[0] for tensor in inputs[0]] if self.rank() == opts.rootRank
                else [_NO_BYTES] * self.size())
        return LightWork([self._group.exchange(f"scatter from {opts.rootRank}", outs, ins)],
                         outputs, finish)

    def barrier(self, opts: Any = None) -> LightWork:  # noqa: ARG002  (torch gives it)
        """Be over when all ranks have come here."""
        return LightWork([self._group.barrier()], [])

    # ---- Between two ranks ----

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> LightWork:
        """Send a tensor."""
        return LightWork([self._group.send(_bytes(tensor)[0], peer, tag) for tensor in tensors],
                         tensors)

    def recv(self, tensors: Tensors, peer: int | None, tag: int = 0) -> LightWork:
        """Receive a tensor of a rank."""
        data, finish = _all_bytes(tensors)
        return LightWork([self._group.receive(one, peer, tag) for one in data], tensors, finish)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> LightWork:
        """Receive a tensor of any rank."""
        return self.recv(tensors, None, tag)

    # torch 2.13 calls these so; earlier ones use the names above.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # ---- The end ----

    def abort(self) -> None:
        """Fail what was begun, at all ranks."""
        self._group.abort()

    def shutdown(self) -> None:
        """Leave the group."""
        self._group.close()

    # ---- Tensors ----

    def _on_each(self, tensors: Tensors,
                 call: Callable[[Bytes, torch.Tensor], Future[None]]) -> LightWork:
        data, finish = _all_bytes(tensors)
        return LightWork([call(one, tensor) for one, tensor in zip(data, tensors, strict=True)],
                         tensors, finish)


_NO_BYTES: Bytes = np.empty(0, np.uint8)


def _nothing() -> None:
    pass


def _bytes(tensor: torch.Tensor) -> tuple[Bytes, Callable[[], None]]:
    """Memory of a tensor as bytes, and what is to be called when the result is in it."""
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device}: the backend lightcc takes tensors on the "
                         "CPU")
    if tensor.is_sparse:
        raise ValueError("sparse tensors have no collectives in the backend lightcc")
    whole = tensor.detach().contiguous()
    data = whole.reshape(-1).view(torch.uint8).numpy() if whole.numel() else _NO_BYTES
    if whole.data_ptr() == tensor.data_ptr():
        return data, _nothing

    def copy_back() -> None:
        with torch.no_grad():
            tensor.copy_(whole)
    return data, copy_back


def _all_bytes(tensors: Iterable[torch.Tensor]) -> tuple[list[Bytes], Callable[[], None]]:
    pairs = [_bytes(tensor) for tensor in tensors]
    return [data for data, _ in pairs], _all([finish for _, finish in pairs])


def _all(finishes: Sequence[Callable[[], None]]) -> Callable[[], None]:
    def finish() -> None:
        for one in finishes:
            one()
    return finish


def _joined(works: Sequence[LightWork], results: Tensors) -> LightWork:
    return LightWork([work._over for work in works], results)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _reduction(opts: Any) -> str:
    if opts is None:
        return "sum"
    name = str(opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp).split(".")[-1]
    if name not in _REDUCTIONS:
        raise ValueError(f"reduction {name} is none of {', '.join(_REDUCTIONS)}")
    return _REDUCTIONS[name]


def _create(store: Any, rank: int, ranks: int, timeout: timedelta) -> LightGroup:
    return LightGroup(store, rank, ranks, timeout)


with contextlib.suppress(AttributeError):  # torch without distributed has no backends
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _create, devices=["cpu"])
