"""Compute of one training step: end of each layer, and launch time of its gradients.

Times are FLOPs over the GPU's rate. A bucket's launch is kept as a delay after the end of the
layer that completes it, so that it moves along when something slows the backward pass down.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harp.lightcc.fusion import DDP_FIRST_BYTES
from sim.step.convolution import convolution_s
from sim.step.kernels import Moving, moving, widened
from sim.workloads.gradient_buckets import ddp_buckets, horovod_buckets

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy
    from numpy.typing import NDArray

    from sim.step.recipe import Recipe
    from sim.workloads.gradient_buckets import Buckets
    from sim.workloads.layers import Layer


NONE = Moving(0.0, 0.0)
ID_BYTES = 8
"""Of an id, which is any 64-bit integer (harp.ttf.embedding)."""


class Work(NamedTuple):
    """A layer, or several in a row: what it computes, and what its experts or tables exchange."""

    name: str
    seconds: float
    before_bytes: int
    """Bytes that a GPU gives to an all-to-all before it."""
    after_bytes: int
    """The same after it."""
    chunks: int = 1
    """Parts in which it exchanges and computes."""


@dataclass(frozen=True)
class Pass:
    """Compute of one step on the slowest GPU, without any communication."""

    forward: tuple[Work, ...]
    """Forward order; layers without experts are joined."""
    layers: tuple[Work, ...]
    """Backward order."""
    bucket_layer: NDArray[np.int64]
    """For each bucket the backward layer after which it is complete."""
    bucket_delay_s: NDArray[np.float64]
    """From that layer's end to the launch (waiting for the cycle, or for a poor overlap)."""
    elements: NDArray[np.int64]
    """Elements of each bucket."""
    names: tuple[str, ...]
    """Name of each bucket: its first tensor, and the number of further ones."""
    flops: float
    """FLOP/s that these times are for."""

    @property
    def passes_s(self) -> Moving:
        """Seconds of the forward and of the backward pass."""
        return Moving(*(sum(work.seconds for work in some)
                        for some in (self.forward, self.layers)))

    @property
    def compute_s(self) -> float:
        """Seconds of both."""
        return sum(work.seconds for work in self.forward + self.layers)


def plan_pass(recipe: Recipe, flops: float) -> Pass:
    """Times of one step's compute at ``flops`` FLOP/s, and its buckets.

    Buckets form as if experts exchanged nothing; their times count from the end of a layer.
    """
    forward = _forward(recipe, flops)
    backward = recipe.model.layers[::-1]
    copying = recipe.costs.copy_per_element
    copy_s = copying.value if copying is not None else 0.0
    beside = moving(recipe)
    layers = tuple(Work(layer.name, backward_s(recipe, layer, flops)
                        + beside.get(layer.name, NONE).backward_s
                        + copy_s * sum(tensor.elements for tensor in layer.tensors),
                        *_backward_bytes(recipe, layer), chunks_of(recipe, layer))
                   for layer in backward)
    ends_s = (sum(work.seconds for work in forward)
              + np.cumsum([work.seconds for work in layers]))
    owner = np.repeat(np.arange(len(layers)), [len(layer.tensors) for layer in backward])
    elements = np.array([tensor.elements for layer in backward
                         for tensor in reversed(layer.tensors)], np.int64)
    nbytes = -(-elements * recipe.gradient_bytes // recipe.layout.tensor)
    buckets = _fuse(recipe, nbytes, ends_s[owner])
    last = owner[buckets.first[1:] - 1]
    overlap = recipe.costs.overlap.value
    # A poor overlap holds a bucket back for a share of what is left of the backward pass.
    held_s = (1.0 - overlap) * np.maximum(ends_s[-1] - buckets.launch_s, 0.0)
    return Pass(forward, layers, last, buckets.launch_s + held_s - ends_s[last],
                np.add.reduceat(elements, buckets.first[:-1]), _bucket_names(recipe, buckets),
                flops)


def forward_s(recipe: Recipe, layer: Layer, flops: float) -> float:
    """Seconds of a layer's forward pass: its FLOPs over the rate, or what was measured."""
    if recipe.model.is_measured:
        return recipe.batch * layer.forward_s / (recipe.layout.tensor * recipe.layout.context)
    return _products_s(recipe, layer, layer.forward_flops, flops)


def backward_s(recipe: Recipe, layer: Layer, flops: float) -> float:
    """Seconds of a layer's backward pass, with what it computes again."""
    if recipe.model.is_measured:
        again = layer.forward_s if recipe.computes_again(layer) else 0.0
        return recipe.batch * (layer.backward_s + again) / (
            recipe.layout.tensor * recipe.layout.context)
    return _products_s(recipe, layer, recipe.backward_flops(layer), flops)


def _products_s(recipe: Recipe, layer: Layer, own: int, flops: float) -> float:
    if layer.maps:
        return convolution_s(recipe, layer, own, flops)
    return recipe.batch * widened(recipe, layer) * own / flops


def _bucket_names(recipe: Recipe, buckets: Buckets) -> tuple[str, ...]:
    tensors = [tensor.name for layer in reversed(recipe.model.layers)
               for tensor in reversed(layer.tensors)]
    return tuple(tensors[first] + (f" +{count - 1}" if count > 1 else "") for first, count
                 in zip(buckets.first[:-1].tolist(), buckets.tensors.tolist(), strict=True))


def _fuse(recipe: Recipe, nbytes: NDArray[np.int64], ready_s: NDArray[np.float64]) -> Buckets:
    if recipe.fusion == "cycle":
        return horovod_buckets(nbytes, ready_s, threshold_bytes=recipe.threshold_bytes,
                               cycle_s=recipe.cycle_s)
    first_bytes = min(DDP_FIRST_BYTES, max(recipe.threshold_bytes, 1))
    return ddp_buckets(nbytes, ready_s, first_bytes=first_bytes,
                       bucket_bytes=max(recipe.threshold_bytes, 1))


def _forward(recipe: Recipe, flops: float) -> tuple[Work, ...]:
    """Forward pass; layers between expert layers are one piece."""
    pieces: list[Work] = []
    beside = moving(recipe)
    for with_experts, layers in groupby(recipe.model.layers, lambda x: x.alltoall_elements > 0):
        run = list(layers)
        parts = [[layer] for layer in run] if with_experts else [run]
        pieces += [Work(part[0].name if with_experts else "forward",
                        sum(forward_s(recipe, x, flops) for x in part)
                        + sum(beside.get(x.name, NONE).forward_s for x in part),
                        *_forward_bytes(recipe, part[0]), chunks_of(recipe, part[0]))
                   for part in parts]
    return tuple(pieces)


def chunks_of(recipe: Recipe, layer: Layer) -> int:
    """Parts in which a layer exchanges: experts alone have something to compute meanwhile."""
    return recipe.expert_chunks if layer.dispatches_tokens else 1


def _forward_bytes(recipe: Recipe, layer: Layer) -> tuple[int, int]:
    """Bytes that a GPU gives to the all-to-alls before and after a layer.

    Activations and rows have the type of the gradients. Of a table's rows ids go to the owners.
    """
    given = recipe.batch * layer.alltoall_bytes(recipe.element_bytes)
    return (ID_BYTES * recipe.batch * layer.lookups or given), given


def _backward_bytes(recipe: Recipe, layer: Layer) -> tuple[int, int]:
    """The same of its backward pass: nothing comes back for the gradients of a table's rows."""
    given = recipe.batch * layer.alltoall_bytes(recipe.element_bytes)
    return given, 0 if layer.lookups else given


class Slowness:
    """Speed of a job's slowest GPU over time: the smallest factor of the faults in force."""

    def __init__(self) -> None:
        self.factors: dict[str, float] = {}
        self._changed: list[simpy.Event] = []

    def set(self, fault: str, factor: float | None) -> None:
        """Put a fault in force, or (None) take it out."""
        if factor is None:
            self.factors.pop(fault, None)
        else:
            self.factors[fault] = factor
        waiting, self._changed = self._changed, []
        for event in waiting:
            event.succeed()

    def compute(self, env: simpy.Environment, seconds: float) -> Generator[simpy.Event, Any, None]:
        """Do ``seconds`` of work at the speed of the moment."""
        left_s, done = seconds, seconds <= 0
        while not done:
            speed = min(self.factors.values(), default=1.0)
            start_s, changed, end = env.now, env.event(), env.timeout(max(left_s, 0.0) / speed)
            self._changed.append(changed)
            yield end | changed
            left_s -= (env.now - start_s) * speed
            done = end.processed
            if changed in self._changed:
                self._changed.remove(changed)
