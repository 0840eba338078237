"""The backend ``lightcc`` of torch.distributed.

>>> import harp.lightcc.torch  # doctest: +SKIP
>>> torch.distributed.init_process_group("lightcc")  # doctest: +SKIP

``pg_options`` (`harp.lightcc.settings.LightSettings`) replaces the environment's settings. Each
method that torch calls on a process group makes calls of `harp.lightcc.group.Group` and returns a
work (`harp.lightcc.torch.work`). Contiguous tensors are used in place; others are copied and copied
back, those on accelerators by `harp.lightcc.torch.staging`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist

from harp.lightcc.group import Group
from harp.lightcc.launch import torch_variables
from harp.lightcc.settings import LightSettings
from harp.lightcc.torch.callbacks import Callbacks, as_in, here
from harp.lightcc.torch.eager import eager
from harp.lightcc.torch.join import patch_join
from harp.lightcc.torch.staging import First, Stager
from harp.lightcc.torch.work import LightWork, StagedWork, join_works, work_of
from harp.lightcc.torch_base.accelerator import Accelerator
from harp.lightcc.torch_base.tensors import (
    NO_BYTES,
    all_bytes,
    all_of,
    bytes_of,
    dtype_of,
    flat_bytes,
    lies_flat,
    nothing,
    take_part,
    write,
)
from harp.lightcc.torch_base.torch_store import PatientStore, in_part, round_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from datetime import timedelta

    import numpy as np
    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan
    from harp.lightcc.group import Between, ErrorPart

    Bytes = NDArray[np.uint8]
    Tensors = Sequence[torch.Tensor]

    _Method = TypeVar("_Method", bound=Callable[..., "LightWork"])

log = logging.getLogger("harp.lightcc")

BACKEND = "lightcc"
_REDUCTIONS = {"SUM": "sum", "AVG": "avg", "PRODUCT": "product", "MIN": "min", "MAX": "max",
               "BAND": "band", "BOR": "bor", "BXOR": "bxor"}
_REDUCTION_BY_HASH = {hash(getattr(dist.ReduceOp, name)): word
                      for name, word in _REDUCTIONS.items()}
"""Keyed by torch's hash: asking for a name takes longer than a small allreduce."""


def _group_call(first: First) -> Callable[[_Method], _Method]:
    """Stage tensors on GPUs; run a call that torch waits for at once in the caller's thread."""
    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def begin(self: LightGroup, *args: Any, **named: Any) -> LightWork:
            if self._stager.takes(args):
                call = functools.partial(as_in, here(), functools.partial(method, self, **named))
                over, stage = self._stager.begin(call, args, first)
                work: LightWork = StagedWork(over, args[0] if args else [], stage)
            elif getattr(named.get("opts", args[-1] if args else None), "asyncOp", True):
                work = method(self, *args, **named)
            else:
                with self._group.waiting():
                    work = method(self, *args, **named)
            work.callbacks = self.callbacks
            return work
        return cast("_Method", begin)
    return decorate


@eager
class LightGroup(dist.ProcessGroup):
    """A process group of torch over a `Group`."""

    part = ""
    """The part of the job's store that its groups have alone, if it has others."""

    def __init__(self, store: Any, rank: int, ranks: int, timeout: timedelta,
                 settings: LightSettings | None = None,
                 members: Sequence[int] | None = None, *, is_job: bool = False) -> None:
        super().__init__(rank, ranks)
        self.callbacks = Callbacks(lambda prefix: Group(
            rank, ranks, PatientStore(dist.PrefixStore(prefix, store), timeout),
            timeout.total_seconds(), settings, members, is_job=is_job))
        settings = self._group.settings  # for groups made later, when the environment may differ
        self._stager = Stager(Accelerator())
        _warn_of_threads(self._group)

    @property
    def _group(self) -> Group:
        return self.callbacks.group

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
        return self.callbacks.name

    def getGroupName(self) -> str:  # noqa: N802  (torch's spelling)
        """Give the name that torch gave it."""
        return self.callbacks.name

    def setGroupName(self, name: str) -> None:  # noqa: N802  (torch's spelling)
        """Take a name."""
        self.callbacks.name = name

    def _set_group_name(self, name: str) -> None:
        self.callbacks.name = name

    # torch asks a group for its backend, one for each kind of device, before it batches messages
    # (from 2.14 on), splits a group or lets it allocate. This group is its own for all of them, and
    # does none of these. Before 2.14 Python cannot subclass c10d's Backend.
    supports_coalescing = supports_splitting = supports_time_estimate = False
    supports_tensor_alloc = False

    def _get_backend(self, device: torch.device) -> LightGroup:  # noqa: ARG002  (torch gives it)
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        """Devices of the tensors that the group takes; torch reads it before checkpoints."""
        return [torch.device(kind) for kind in _kinds()]

    # ---- Collectives ----

    @_group_call(First.BOTH)
    def allreduce(self, tensors: Tensors, opts: Any = None) -> LightWork:
        """Reduce tensors, each in place."""
        reduction = find_reduction(opts)
        if len(tensors) == 1 and lies_flat(tensors[0]):
            tensor = tensors[0]
            return work_of(self._group.allreduce_of(
                tensor, tensor.data_ptr(), tensor.numel(), dtype_of(tensor), reduction, flat_bytes),
                tensors)
        if any(tensor.is_sparse for tensor in tensors):
            return join_works([self._allreduce_sparse(tensor, reduction) for tensor in tensors],
                           tensors)
        return self._on_each(tensors, lambda data, tensor: self._group.allreduce(
            data, dtype_of(tensor), reduction))

    @_group_call(First.BOTH)
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> LightWork:
        """Reduce tensors, each in place."""
        return self.allreduce(tensors, opts)

    def _allreduce_sparse(self, tensor: torch.Tensor, reduction: str) -> LightWork:
        """Send all ranks the elements of all; each adds them up in the same order."""
        if not tensor.is_sparse or reduction != "sum":
            raise ValueError("the backend lightcc has only the sum of sparse tensors, and no call "
                             "of sparse and dense tensors together")
        own = tensor.coalesce()
        indices, values = own.indices(), own.values()
        call = f"allreduce of a sparse {list(tensor.shape)} {dtype_of(tensor)}"
        counts = torch.zeros(self.size(), dtype=torch.int64)
        self._exchange_all(f"{call}, sizes", torch.tensor([own._nnz()]), list(counts.split(1))
                           ).result()
        all_indices = [indices.new_empty(len(indices), int(n)) for n in counts]
        all_values = [values.new_empty(int(n), *values.shape[1:]) for n in counts]

        def add_up() -> None:
            write(tensor, torch.sparse_coo_tensor(
                torch.cat(all_indices, 1), torch.cat(all_values), tensor.shape).coalesce())
        return LightWork([self._exchange_all(call, indices, all_indices),
                          self._exchange_all(call, values, all_values)], [tensor], add_up)

    def _exchange_all(self, call: str, own: torch.Tensor, parts: Tensors) -> Future[None]:
        """Fill the contiguous tensors of parts with those of all ranks."""
        return self._group.exchange(call, [bytes_of(own)[0]] * self.size(), all_bytes(parts)[0])

    def error_part(self, tensor: torch.Tensor) -> ErrorPart:
        """Return the elements for which a sparse average keeps an error; none where it is dense."""
        return self._group.error_part(tensor.numel() * tensor.element_size(), dtype_of(tensor))

    @_group_call(First.BOTH)
    def average_sparsely(self, tensor: torch.Tensor, error: torch.Tensor,
                         ratio: float | None = None, *, sampled: bool = False) -> LightWork:
        """Average a tensor in place; the error keeps the values not sent (`harp.lightcc.hook`)."""
        left = bytes_of(error)[0]
        return self._on_each([tensor], lambda data, tensor: self._group.allreduce(
            data, dtype_of(tensor), "avg", left, ratio, sampled=sampled))

    @property
    def settings(self) -> LightSettings:
        """The LIGHT_* variables that hold for the group."""
        return self._group.settings

    @property
    def place(self) -> str:
        """The place of this rank: ranks of one place share a host's memory."""
        return self._group.places[self._group.rank]

    def sparse_between(self, between: Between, part: torch.Tensor) -> bool:
        """Whether a part of a bucket is sent sparsely or in few bits from host to host."""
        parameters = self._group.between_path(between, part.nbytes, sparse=True).parameters
        return part.dtype == torch.float32 and len(between.ranks) > 1 and (
            "ratio" in parameters or "bits" in parameters)

    @_group_call(First.BOTH)
    def sum_between(self, tensor: torch.Tensor, between: Between,
                    error: torch.Tensor | None = None, ratio: float | None = None, *,
                    sampled: bool = False) -> LightWork:
        """Sum the parts of a bucket that ranks of several hosts have, in place."""
        left = None if error is None else bytes_of(error)[0]
        return self._on_each([tensor], lambda data, tensor: self._group.sum_between(
            data, dtype_of(tensor), between, left, ratio, sampled=sampled))

    @property
    def host_numbers(self) -> tuple[int, ...]:
        """The number of each rank's host."""
        return self._group.host_numbers

    def run_blocks(self, plan: Plan, data: torch.Tensor, out: torch.Tensor) -> Future[None]:
        """Run a plan of `harp.collectives.alltoallv` on contiguous tensors."""
        return self._group.run_blocks(plan, bytes_of(data)[0], bytes_of(out)[0], dtype_of(data))

    @_group_call(First.BOTH)
    def broadcast(self, tensors: Tensors, opts: Any) -> LightWork:
        """Give all ranks the root's tensors."""
        if len(tensors) == 1 and lies_flat(tensors[0]):
            tensor = tensors[0]
            return work_of(self._group.broadcast_of(
                tensor, tensor.data_ptr(), tensor.nbytes, dtype_of(tensor), opts.rootRank,
                flat_bytes), tensors)
        return self._on_each(tensors, lambda data, tensor: self._group.broadcast(
            data, opts.rootRank, dtype_of(tensor)))

    @_group_call(First.BOTH)
    def reduce(self, tensors: Tensors, opts: Any) -> LightWork:
        """Reduce tensors; only the root's change."""
        self._group.check_rank("root of a reduce", opts.rootRank)
        if opts.rootRank == self.rank():
            return self.allreduce(tensors, opts)
        copies = [tensor.clone() for tensor in tensors]
        return self.allreduce(copies, opts)

    @_group_call(First.WRITTEN)
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors,
                  opts: Any = None) -> LightWork:  # noqa: ARG002  (torch gives it)
        """Give all ranks the tensors of all, which may differ in size."""
        made, finishes = [], []
        for parts, own in zip(outputs, inputs, strict=True):
            data, _ = bytes_of(own)
            ins, finish = all_bytes(parts)
            made.append(self._group.exchange(f"allgather of {dtype_of(own)}",
                                             [data] * self.size(), ins))
            finishes.append(finish)
        return LightWork(made, list(outputs), all_of(finishes))

    @_group_call(First.WRITTEN)
    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors,
                            opts: Any = None) -> LightWork:
        """Give all ranks the lists of tensors of all; a list of outputs is of one rank."""
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    @_group_call(First.WRITTEN)
    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor,
                        opts: Any = None) -> LightWork:  # noqa: ARG002  (torch gives it)
        data, finish = bytes_of(output)
        given, _ = bytes_of(own)
        part = len(data) // self.size()
        if len(given) * self.size() != len(data) or own.dtype != output.dtype:
            raise ValueError(f"all_gather_into_tensor: {self.size()} parts of {own.numel()} "
                             f"{dtype_of(own)} do not fill {output.numel()} {dtype_of(output)}")
        data[self.rank() * part:(self.rank() + 1) * part] = given
        return LightWork([self._group.allgather(data, dtype_of(own))], [output], finish)

    @_group_call(First.WRITTEN)
    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors,
                                        opts: Any = None) -> LightWork:
        """Give all ranks the tensors of all, pair by pair."""
        return join_works([self._allgather_base(output, own, opts)
                        for output, own in zip(outputs, inputs, strict=True)], outputs)

    @_group_call(First.WRITTEN)
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors],
                       opts: Any = None) -> LightWork:
        """Reduce lists of tensors, and give each rank the one of its number."""
        works = []
        for output, parts in zip(outputs, inputs, strict=True):
            if len({part.numel() for part in parts}) == 1:
                works.append(self._reduce_scatter_base(
                    output, torch.cat([part.reshape(-1) for part in parts]), opts))
            else:
                works.append(self._reduce_parts_of_any_size(output, parts, opts))
        return join_works(works, outputs)

    def _reduce_parts_of_any_size(self, output: torch.Tensor, parts: Tensors,
                                  opts: Any) -> LightWork:
        whole = torch.cat([part.reshape(-1) for part in parts])
        start = sum(part.numel() for part in parts[:self.rank()])
        take = take_part(output, parts[self.rank()].numel(), whole, start)
        return LightWork([self.allreduce([whole], opts).over], [output], take)

    @_group_call(First.WRITTEN)
    def _reduce_scatter_base(self, output: torch.Tensor, whole: torch.Tensor,
                             opts: Any = None) -> LightWork:
        if whole.numel() % self.size():
            raise ValueError(f"reduce_scatter_tensor: {whole.numel()} elements have no "
                             f"{self.size()} equal parts")
        part = whole.numel() // self.size()
        work = whole.clone(memory_format=torch.contiguous_format)  # the caller keeps its own
        take = take_part(output, part, work, self.rank() * part)
        return LightWork([self._group.reduce_scatter(bytes_of(work)[0], dtype_of(work),
                                                     find_reduction(opts))], [output], take)

    @_group_call(First.WRITTEN)
    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors,
                                        opts: Any = None) -> LightWork:
        """Reduce and scatter, pair by pair."""
        return join_works([self._reduce_scatter_base(output, whole, opts)
                        for output, whole in zip(outputs, inputs, strict=True)], outputs)

    @_group_call(First.WRITTEN)
    def alltoall(self, outputs: Tensors, inputs: Tensors,
                 opts: Any = None) -> LightWork:  # noqa: ARG002  (torch gives it)
        """Send a tensor to each rank and receive one from each."""
        outs = [bytes_of(tensor)[0] for tensor in inputs]
        ins, finish = all_bytes(outputs)
        return LightWork([self._group.exchange(f"all_to_all of {dtype_of(inputs[0])}", outs, ins)],
                         outputs, finish)

    @_group_call(First.WRITTEN)
    def alltoall_base(self, output: torch.Tensor, given: torch.Tensor, output_sizes: Sequence[int],
                      input_sizes: Sequence[int], opts: Any = None) -> LightWork:
        """Send rows to each rank and receive rows from each; no sizes stand for equal ones."""
        ranks = self.size()
        for tensor, sizes in ((output, output_sizes), (given, input_sizes)):
            if not sizes and tensor.shape[0] % ranks:
                raise ValueError(f"all_to_all_single: {tensor.shape[0]} rows have no {ranks} equal "
                                 "parts")
        parts = [tensor.split(list(sizes) or [tensor.shape[0] // ranks] * ranks)
                 for tensor, sizes in ((output, output_sizes), (given, input_sizes))]
        if any(len(part) != self.size() for part in parts):
            raise ValueError(f"all_to_all_single: {len(parts[1])} parts to send and "
                             f"{len(parts[0])} to receive, for {self.size()} ranks")
        if not output_sizes and not input_sizes:
            return LightWork([self.alltoall(parts[0], parts[1], opts).over], [output])
        out, finish = bytes_of(output)
        return LightWork([self._group.alltoallv(
            f"all_to_all_single of {dtype_of(given)}", bytes_of(given)[0], out,
            *([part.nbytes for part in row] for row in reversed(parts)))], [output], finish)

    @_group_call(First.WRITTEN)
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> LightWork:
        """Give the root the tensors of all."""
        self._group.check_rank("root of a gather", opts.rootRank)
        outs, ins, finish = [NO_BYTES] * self.size(), [NO_BYTES] * self.size(), nothing
        outs[opts.rootRank] = bytes_of(inputs[0])[0]
        if self.rank() == opts.rootRank:
            ins, finish = all_bytes(outputs[0])
        call = f"gather of {dtype_of(inputs[0])} at {opts.rootRank}"
        return LightWork([self._group.exchange(call, outs, ins)], list(outputs), finish)

    @_group_call(First.WRITTEN)
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> LightWork:
        """Give each rank a tensor of the root's."""
        self._group.check_rank("root of a scatter", opts.rootRank)
        ins = [NO_BYTES] * self.size()
        ins[opts.rootRank], finish = bytes_of(outputs[0])
        outs = ([bytes_of(tensor)[0] for tensor in inputs[0]] if self.rank() == opts.rootRank
                else [NO_BYTES] * self.size())
        call = f"scatter of {dtype_of(outputs[0])} from {opts.rootRank}"
        return LightWork([self._group.exchange(call, outs, ins)], outputs, finish)

    @_group_call(First.WRITTEN)
    def barrier(self, opts: Any = None) -> LightWork:  # noqa: ARG002  (torch gives it)
        """Wait for all ranks."""
        return work_of(self._group.barrier(), [])

    def monitored_barrier(self, timeout: timedelta,
                          wait_all_ranks: bool = False) -> None:  # noqa: ARG002  (torch gives it)
        """Wait for all ranks; torch asks it of all groups on CPUs from 2.14 on."""
        self.barrier().wait(timeout)

    # ---- Between two ranks ----

    @_group_call(First.READ)
    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> LightWork:
        """Send a tensor."""
        return LightWork([self._group.send(bytes_of(tensor)[0], peer, tag) for tensor in tensors],
                         tensors)

    @_group_call(First.WRITTEN)
    def recv(self, tensors: Tensors, peer: int | None, tag: int = 0) -> LightWork:
        """Receive a tensor of a rank."""
        data, finish = all_bytes(tensors)
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

    def when_over(self, tell: Callable[[str | None], None]) -> None:
        """Call ``tell`` with the sentence of the failure, or with None when the group is closed."""
        self.callbacks.program_group.when_over(tell)

    @property
    def failure(self) -> str | None:
        """The sentence that says why the group has failed, or None."""
        return self.callbacks.program_group.failure

    def fail(self, error: Exception, *, is_symptom: bool = False) -> None:
        """Fail the group at all ranks; a symptom may follow from another rank's failure."""
        self.callbacks.program_group.fail(f"rank {self.rank()} could not average gradients: "
                         f"{type(error).__name__}: {error}", is_symptom=is_symptom)

    def abort(self) -> None:
        """Fail the calls that were begun, at all ranks."""
        for group in self.callbacks.groups():
            group.abort()

    def shutdown(self) -> None:
        """Leave the group."""
        self._stager.close()
        self.callbacks.close()

    # ---- Tensors ----

    def _on_each(self, tensors: Tensors,
                 call: Callable[[Bytes, torch.Tensor], Future[None]]) -> LightWork:
        data, finish = all_bytes(tensors)
        return LightWork([call(one, tensor) for one, tensor in zip(data, tensors, strict=True)],
                         tensors, finish)


def _warn_of_threads(group: Group) -> None:
    """Warn at a host's first rank if its ranks have more threads than CPUs."""
    here = group.places[group.rank]
    ranks, threads = group.places.count(here), torch.get_num_threads()
    cpus = len(os.sched_getaffinity(0))
    is_first = group.places.index(here) == group.rank
    if is_first and min(ranks, threads) > 1 and ranks * threads > cpus:
        _warn_once(f"{ranks} ranks of this host compute with {threads} threads each on {cpus} "
                   f"CPUs and slow each other down; set OMP_NUM_THREADS=1, as launchers do")


@functools.cache
def _warn_once(sentence: str) -> None:
    log.warning("%s", sentence)


def find_reduction(opts: Any) -> str:
    """Give the name of the reduction that torch's options ask for; a sum if they do not say."""
    if opts is None:
        return "sum"
    op = getattr(opts, "reduceOp", opts)  # C++ takes a bare ReduceOp as well
    return _REDUCTION_BY_HASH.get(hash(op)) or _parse_reduction(op)


def _parse_reduction(op: Any) -> str:
    name = str(getattr(op, "op", op)).split(".")[-1]
    if name not in _REDUCTIONS:
        raise ValueError(f"unknown reduction {name}; allowed are {', '.join(_REDUCTIONS)}")
    return _REDUCTIONS[name]


def _create_group(asked: Any, settings: LightSettings | None) -> LightGroup:
    if settings is not None and not isinstance(settings, LightSettings):
        raise ValueError(f"pg_options is a {type(settings).__name__}; the backend lightcc takes "
                         "harp.lightcc.settings.LightSettings")
    is_job = not asked.global_ranks_in_group  # so torch marks the default group
    job = None if is_job else dist.group.WORLD
    part = (job.part if isinstance(job, LightGroup) else
            round_of(asked.store, asked.group_rank, asked.group_size))
    group = LightGroup(in_part(asked.store, part), asked.group_rank, asked.group_size,
                       asked.timeout, settings,
                       asked.global_ranks_in_group or range(asked.group_size), is_job=is_job)
    group.part = part
    return group


def _kinds() -> list[str]:
    """Name the kinds of devices that this process has."""
    found = torch.accelerator.current_accelerator()
    return ["cpu"] if found is None else ["cpu", found.type]


def register() -> None:
    """Make the backend known to torch; from 2.14 on torch calls it when it does not know the name.

    Importing this module does so already.
    """
    with contextlib.suppress(AttributeError):  # torch without distributed has no backends
        if not hasattr(dist.Backend, BACKEND.upper()):
            dist.Backend.register_backend(BACKEND, _create_group, extended_api=True,
                                          devices=[*dict.fromkeys([*_kinds(), "cuda"])])
            patch_join(LightWork)


register()

with contextlib.suppress(ValueError):  # init_process_group names the variable that is missing
    os.environ.update(torch_variables(os.environ))
