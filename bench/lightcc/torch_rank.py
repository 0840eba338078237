"""A rank of LightCC and gloo: it reads commands from stdin, a line of JSON each, and answers each.

The same processes run all collectives that are compared, in turn and on the same memory. The
environment is torchrun's. A command is ``{"do": NAME, ...}``, and every rank must get the same
commands; the answer has the seconds that the work took, its repetitions, and the CPU seconds of
this rank.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from harp._cnet import ffi, lib
from harp.lightcc.few_bits import FewBits
from harp.lightcc.group import Group
from harp.lightcc.hook import GradientState, average_gradients
from harp.lightcc.torch import PatientStore  # which registers the backend, too
from harp.lightcc.torch_base.tensors import flat_bytes
from sim.workloads.models import get_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Groups:
    """Groups by backend and LIGHT_* settings, made when they are first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def get(self, backend: str, light: dict[str, str], ranks: Iterable[int] | None = None) -> Any:
        """Give a group of all ranks, or of some; all must ask for it."""
        some = None if ranks is None else list(ranks)
        key = json.dumps([backend, light, some])
        if key not in self._made:
            os.environ.update(light)
            self._made[key] = dist.new_group(some, backend=backend)
            for name in light:
                del os.environ[name]
        return self._made[key]

    @functools.cached_property
    def own(self) -> Group:
        """A group of all ranks that is called directly, not by torch; all must ask for it."""
        store = dist.distributed_c10d._get_default_store()
        return Group(dist.get_rank(), dist.get_world_size(), PatientStore(
            dist.PrefixStore("own", store), dist.default_pg_timeout))


class Layer(torch.autograd.Function):
    """A layer as a GPU would compute it: the host sleeps, then the gradients are there."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, times_s: tuple[float, float],
                gradients: Sequence[torch.Tensor], *_: torch.Tensor) -> torch.Tensor:
        """Take the time of the forward pass."""
        time.sleep(times_s[0])
        ctx.backward_s, ctx.gradients = times_s[1], gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Take the time of the backward pass."""
        time.sleep(ctx.backward_s)
        return gradient, None, None, *ctx.gradients


class SleepingModel(torch.nn.Module):
    """A model's tensors with random gradients, and its layers' shares of a step's time."""

    def __init__(self, name: str, step_s: float, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        layers = get_model(name).layers
        whole = sum(layer.forward_flops + layer.backward_flops for layer in layers)
        self._layers: list[tuple[tuple[float, float], list[torch.Tensor], list[torch.Tensor]]] = []
        for layer in layers:
            parameters = [torch.nn.Parameter(torch.zeros(tensor.elements))
                          for tensor in layer.tensors]
            for tensor, parameter in zip(layer.tensors, parameters, strict=True):
                self.register_parameter(tensor.name.replace(".", "_"), parameter)
            gradients = [torch.randn(len(parameter), generator=random) for parameter in parameters]
            times = step_s * layer.forward_flops / whole, step_s * layer.backward_flops / whole
            self._layers.append((times, gradients, parameters))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Go through all layers."""
        for times, gradients, parameters in self._layers:
            value = Layer.apply(value, times, gradients, *parameters)
        return value


class Rank:
    """The commands of a rank."""

    def __init__(self) -> None:
        self.groups = Groups()
        self._models: dict[str, Callable[[], None]] = {}
        self._memory = torch.zeros(32 << 20)

    def allreduce(self, backend: str, nbytes: int, light: dict[str, str]) -> Callable[[], None]:
        """Sum float32."""
        group, data = self.groups.get(backend, light), self._memory[:nbytes // 4]
        return lambda: dist.all_reduce(data, group=group)

    def allreduce_by_own_call(self, nbytes: int) -> Callable[[], None]:
        """Sum float32 without torch's layer, as MPI does."""
        group, data = self.groups.own, self._memory[:nbytes // 4]

        def allreduce() -> None:
            with group.waiting():
                group.allreduce_of(data, data.data_ptr(), data.numel(), "float32", "sum",
                                   flat_bytes).result()
        return allreduce

    def allreduce_as_float16(self, backend: str, nbytes: int,
                             light: dict[str, str]) -> Callable[[], None]:
        """Sum as many float16 as ``nbytes`` bytes hold float32, and turn them back."""
        group, data = self.groups.get(backend, light), self._memory[:nbytes // 4]

        def allreduce() -> None:
            halves = data.to(torch.float16)
            dist.all_reduce(halves, group=group)
            data.copy_(halves)
        return allreduce

    def allreduce_in_bits(self, nbytes: int, bits: int, intra: int) -> Callable[[], object]:
        """Sum float32 in few bits, with error feedback."""
        vector = self._memory[:nbytes // 4].numpy()
        call = FewBits(self.groups.own, len(vector), bits, intra=intra)
        error = vector[call.own] * 0

        def allreduce() -> None:
            with self.groups.own.waiting():
                call.allreduce(vector, error).result()
        return allreduce

    def alltoall(self, backend: str, nbytes: int, light: dict[str, str]) -> Callable[[], None]:
        """Send to every rank, to no two the same number of bytes; ``nbytes`` on the average."""
        group = self.groups.get(backend, light)
        rank, ranks = dist.get_rank(), dist.get_world_size()

        def size(source: int, target: int) -> int:
            return int(nbytes // 4 * (1 + (source + target) % ranks) * 2 // (ranks + 1))

        ins = [size(rank, peer) for peer in range(ranks)]
        outs = [size(peer, rank) for peer in range(ranks)]
        sent, came = self._memory[:sum(ins)], torch.zeros(sum(outs))
        return lambda: dist.all_to_all_single(came, sent, outs, ins, group=group)

    def train(self, backend: str, light: dict[str, str], model: str, step_s: float,
              hook: str) -> Callable[[], None]:
        """Make a step under DDP."""
        key = json.dumps([backend, light, hook])
        if key not in self._models:
            group = self.groups.get(backend, light)
            made = DistributedDataParallel(SleepingModel(model, step_s, dist.get_rank()),
                                           process_group=group)
            if hook == "alone":
                made.register_comm_hook(None, leave_alone)
            elif hook == "fp16":
                made.register_comm_hook(group, fp16_compress_hook)
            elif hook == "average_gradients":
                made.register_comm_hook(GradientState(group), average_gradients)
            value = torch.ones(1, requires_grad=True)
            self._models[key] = lambda: made(value).sum().backward()
        return self._models[key]

    # Commands of host_costs.py. Ranks without a part in a command do nothing meanwhile.

    def memory(self, nbytes: int) -> Callable[[], None]:
        """Sum float32 between the two ranks of each host."""
        groups = [self.groups.get("lightcc", {}, pair) for pair in ((0, 1), (2, 3))]
        group, data = groups[dist.get_rank() // 2], self._memory[:nbytes // 4]
        return lambda: dist.all_reduce(data, group=group)

    def stream(self, backend: str, nbytes: int) -> Callable[[], None]:
        """Send from rank 0 to rank 2, on the other host, and hear that it is there."""
        group, data = self.groups.get(backend, {}, (0, 2)), self._memory[:nbytes // 4]
        if dist.get_rank() not in {0, 2}:
            return lambda: None

        def send() -> None:
            dist.broadcast(data, 0, group=group)
            dist.barrier(group)
        return send

    def select(self, elements: int) -> Callable[[], object]:
        """Select 1 % with error feedback."""
        values, error, pairs = self._sparse(elements)
        return lambda: lib.harp_topk_select(values, error, elements, pairs, elements // 100, 8)

    def scatter(self, elements: int) -> Callable[[], object]:
        """Set all to zero and add 1 %, as a tensor that is filled by pairs is."""
        values, error, pairs = self._sparse(elements)
        lib.harp_topk_select(values, error, elements, pairs, elements // 100, 8)
        return lambda: lib.harp_topk_add(error, elements, pairs, elements // 100, 8)

    def cast(self, elements: int) -> Callable[[], object]:
        """Turn float32 to float16."""
        values = self._memory[:elements]
        return lambda: values.to(torch.float16)

    def _sparse(self, elements: int) -> tuple[Any, Any, Any]:
        values = np.random.default_rng(1).normal(size=elements).astype("<f4")
        return (ffi.from_buffer("float[]", values),
                ffi.from_buffer("float[]", np.zeros(elements, "<f4")),
                ffi.from_buffer("uint8_t[]", np.empty(elements // 100 * 8, np.uint8)))

    def measure(self, do: str, seconds: float, most: int, **more: Any) -> dict[str, float]:
        """Repeat for about ``seconds``; rank 0 chooses the number of times."""
        work = getattr(self, do)(**more)
        work()  # what is made when it is first needed does not count
        begun = time.perf_counter()
        work()
        each = time.perf_counter() - begun
        times = torch.tensor([max(1, min(most, int(seconds / each)))])
        dist.broadcast(times, 0)
        dist.barrier()
        cpu_s, begun = _cpu_s(), time.perf_counter()
        for _ in range(int(times)):
            work()
        took = time.perf_counter() - begun
        return {"seconds": took, "times": int(times), "cpu_s": _cpu_s() - cpu_s}


# DDP looks at a hook's annotations, which must not be text.
def leave_alone(_, bucket):  # type: ignore[no-untyped-def]
    """Average nothing: what is left of a step is compute and DDP's own work."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Answer until stdin ends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = Rank()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(rank.measure(**json.loads(line))), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the groups' other ranks end just so


if __name__ == "__main__":
    main()
