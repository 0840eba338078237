"""A training step as a graph of operations, and the data-parallel step as one of its generators.

Operations on the GPU run one after the other in the order of the graph; those beside it begin when
what they wait for (``after``) is done. All ranks of a job do the same, so one graph stands for all.
`sim.step.train` runs a graph; `sim.step.fsdp` and `sim.step.tensor_parallel` make others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sim.step.compute import Pass, Work

Kind = Literal["forward", "backward", "settle", "exchange", "reduce", "average", "gather",
               "scatter"]
ON_GPU = frozenset({"forward", "backward", "settle", "exchange", "reduce"})
"""Kinds that the GPU does or waits for; the others run beside it, on the job's streams."""


@dataclass(frozen=True)
class Operation:
    """One operation of every rank.

    - forward, backward: arithmetic of ``seconds``;
    - settle: the GPU gives back the time that collectives took of it;
    - exchange: an all-to-all of ``size`` bytes a rank, between experts;
    - reduce: an allreduce of ``size`` bytes within a tensor-parallel group;
    - average: an allreduce of ``size`` gradient elements over all replicas;
    - gather, scatter: an allgather to, a reduce-scatter of ``size`` parameter elements.
    """

    kind: Kind
    name: str
    seconds: float = 0.0
    size: int = 0
    after: tuple[int, ...] = ()
    """Numbers of the operations that must be done before; of those on the GPU, beside its order."""
    delay_s: float = 0.0
    """From then to the launch: waiting for a cycle, or an overlap that is not whole."""


Graph = tuple[Operation, ...]


def data_parallel(work: Pass, *, averaged: bool = True) -> Graph:
    """Every rank holds the whole model: gradients are averaged while the backward pass runs.

    Experts exchange before and after their layer. Nothing is averaged where there is one replica.
    """
    graph: list[Operation] = []
    done: list[int] = []
    passes: tuple[tuple[Kind, tuple[Work, ...]], ...] = (("forward", work.forward),
                                                         ("backward", work.layers))
    for kind, layers in passes:
        for layer in layers:
            if layer.exchange_bytes:
                graph.append(Operation("exchange", f"{layer.name} in", size=layer.exchange_bytes))
            graph.append(Operation(kind, layer.name, layer.seconds))
            if layer.exchange_bytes:
                graph.append(Operation("exchange", f"{layer.name} out", size=layer.exchange_bytes))
            if kind == "backward":
                graph.append(Operation("settle", layer.name))
                done.append(len(graph) - 1)
    if averaged:
        graph += averages(work, done)
    return tuple(graph)


def averages(work: Pass, done: list[int]) -> list[Operation]:
    """Averages of the buckets, each after the operation that completes its last layer."""
    return [Operation("average", name, size=elements, after=(done[layer],), delay_s=delay_s)
            for name, elements, layer, delay_s in zip(
                work.names, work.elements.tolist(), work.bucket_layer.tolist(),
                work.bucket_delay_s.tolist(), strict=True)]
