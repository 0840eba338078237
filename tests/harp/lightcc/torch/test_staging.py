"""Tensors on GPUs are staged in the right order: on GPUs that are made here and as late as may be.

A stream here does what it was given only when somebody waits for it. So whoever reads memory
without having waited for what writes it, always reads what was there before.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from harp.lightcc.torch import LightGroup  # noqa: E402
from harp.lightcc.torch.staging import Stage, Stager  # noqa: E402
from harp.lightcc.torch.work import LightWork, StagedWork  # noqa: E402
from tests.harp.lightcc.test_group import PATIENCE_S  # noqa: E402

RANKS = 3
SUM = float(sum(range(RANKS)))
BEFORE = 99.0
"""Content of memory before the first write."""
RUNNING = threading.RLock()


class Event:
    def __init__(self, stream):
        self.stream, self.end = stream, len(stream.work)

    def synchronize(self):
        with RUNNING:
            while self.stream.done < self.end:
                self.stream.done += 1
                self.stream.work[self.stream.done - 1]()


class Stream:
    def __init__(self):
        self.work, self.done = [], 0

    def wait_event(self, event):
        self.work.append(event.synchronize)


class LateDevices:
    """A GPU of one rank."""

    def __init__(self):
        self.caller, self.side, self.entered = Stream(), Stream(), []

    def are_used(self):
        return True

    def holds(self, value):
        return getattr(value, "is_on_gpu", False)

    def current_stream(self, device):
        return self.caller

    def side_stream(self, device):
        return self.side

    def on_stream(self, stream):
        self.entered.append(stream)
        return contextlib.nullcontext()

    def record(self, stream):
        return Event(stream)

    def pinned(self, tensor):
        return torch.full(tensor.shape, BEFORE)

    def copy(self, stream, into, source):
        stream.work.append(lambda: into.copy_(source))

    def tensor(self, *shape, value=None):
        """Give a tensor that a kernel will fill which has not run yet."""
        made = torch.full(shape, BEFORE)
        made.is_on_gpu = True
        if value is not None:
            self.caller.work.append(lambda: made.fill_(value))
        return made

    def read(self, tensor):
        """Give what a kernel reads that is begun now."""
        seen = []
        self.caller.work.append(lambda: seen.extend(tensor.flatten().tolist()))
        Event(self.caller).synchronize()
        return seen


@pytest.fixture
def groups():
    store, devices = dist.HashStore(), [LateDevices() for _ in range(RANKS)]
    with ThreadPoolExecutor(RANKS) as pool:
        made = list(pool.map(
            lambda rank: LightGroup(store, rank, RANKS, timedelta(seconds=PATIENCE_S)),
            range(RANKS)))
        for group, own in zip(made, devices, strict=True):
            group._stager = Stager(own)
        yield made
        list(pool.map(LightGroup.shutdown, made))


def sums(groups):
    """Average by ranks' GPUs, each waiting as a user does; gives what kernels read afterwards."""
    devices = [group._stager.devices for group in groups]
    data = [own.tensor(5, value=rank) for rank, own in enumerate(devices)]
    works = [group.allreduce([own]) for group, own in zip(groups, data, strict=True)]
    for work in works:  # no call but this one blocks, else the first rank waited for the others
        work.wait()
    return [own.read(tensor) for own, tensor in zip(devices, data, strict=True)]


def test_a_collective_reads_what_kernels_wrote_and_kernels_read_its_result(groups):
    assert sums(groups) == [[SUM] * 5] * RANKS


@pytest.mark.parametrize("left_out", ["copies wait for kernels", "the collective waits for copies",
                                      "kernels wait for copies"])
def test_each_wait_that_is_left_out_is_seen(groups, monkeypatch, left_out):
    if left_out == "copies wait for kernels":
        for group in groups:
            monkeypatch.setattr(group._stager.devices.side, "wait_event", lambda event: None)
    else:
        wait = "join" if left_out.startswith("kernels") else "wait_out"
        monkeypatch.setattr(Stage, wait, lambda stage: None)
    assert all(SUM not in seen for seen in sums(groups))


def of_each_collective(rank, group, devices):
    """Give works, and by tensor what it is to have."""
    def gpu(*shape, value=None):
        return devices.tensor(*shape, value=value)
    root = dist.BroadcastOptions()
    root.rootRank = 1
    shared, parts, own = gpu(2, value=rank), [gpu(2) for _ in range(RANKS)], gpu(2, value=rank)
    whole, part, given = gpu(2 * RANKS), gpu(2), gpu(2 * RANKS, value=rank)
    rows, columns = gpu(RANKS, 2), gpu(2, RANKS, value=rank).t()
    columns.is_on_gpu = True
    on_host, last = torch.full((3,), float(rank)), gpu(3, value=rank)
    works = [group.broadcast([shared], root), group.allgather([parts], [own]),
             group._allgather_base(whole, own), group._reduce_scatter_base(part, given),
             group.alltoall_base(rows, columns, [], []),
             group.allreduce([on_host]), group.allreduce_coalesced([last])]
    came = gpu(4)
    works += [group.send([gpu(4, value=rank)], (rank + 1) % RANKS, 7),
              group.recv([came], (rank - 1) % RANKS, 7)]
    everybody = [float(i) for i in range(RANKS) for _ in range(2)]
    return works, [(shared, [1.0] * 2), *((one, [float(i)] * 2) for i, one in enumerate(parts)),
                   (whole, everybody), (part, [SUM] * 2), (rows, everybody),
                   (on_host, [SUM] * 3), (last, [SUM] * 3),
                   (came, [float((rank - 1) % RANKS)] * 4)]


def test_every_collective_takes_tensors_on_gpus_in_the_order_of_the_calls(groups):
    begun = [of_each_collective(rank, group, group._stager.devices)
             for rank, group in enumerate(groups)]
    for works, _ in begun:
        for work in works:
            work.wait()
    for group, (_, wanted) in zip(groups, begun, strict=True):
        for tensor, values in wanted:
            assert group._stager.devices.read(tensor) == values


def test_a_future_completes_on_the_stream_of_the_copies(groups, monkeypatch):
    monkeypatch.setattr(StagedWork, "_devices", LightWork._devices)  # of no real device
    data = [group._stager.devices.tensor(2, value=1) for group in groups]
    futures = [group.allreduce([own]).get_future()
               for group, own in zip(groups, data, strict=True)]
    for group, own, future in zip(groups, data, futures, strict=True):
        assert future.wait()[0] is own
        assert group._stager.devices.entered == [group._stager.devices.side]


def test_an_impossible_call_is_an_error_of_the_work(groups):
    group = groups[0]
    data = group._stager.devices.tensor(2, value=1)
    work = group._reduce_scatter_base(data, group._stager.devices.tensor(5, value=1))
    with pytest.raises(ValueError, match="5 elements have no 3 equal parts"):
        work.wait()
