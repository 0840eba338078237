"""A model as a pipeline, cut anywhere between its operators.

    pipe = harp.angelptm.pipeline(model, (tokens,), stages=2, loss=loss, target=targets)
    print(pipe.describe())
    rank = pipe.start("1f1b", microbatches=8)
    optimizer = torch.optim.AdamW(rank.parameters())
    loss = rank.step(tokens, target=targets)      # of the whole batch
    optimizer.step()

The example is one microbatch. Every rank has the model and calls this; the first one measures,
and all take its cuts.

    operator_graph    operators with times and sizes
    cuts              the best cuts: a pure function
    operator_program  a model as a graph, by torch.export or module by module
    measure           the times
    stage             a module for each stage, which relays values that skip it
    running           a rank's stages under torch.distributed.pipelining
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.utils import _pytree as pytree

from harp.angelptm.stages.cuts import CutError, Cuts, Link, Memory, cut
from harp.angelptm.stages.measure import measured
from harp.angelptm.stages.operator_program import by_modules, exported
from harp.angelptm.stages.running import Running
from harp.angelptm.stages.stage import Value, crossing, stage_module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import fx, nn

    from harp.angelptm.stages.operator_graph import Graph
    from harp.angelptm.stages.operator_program import Program

KINDS = ("operators", "layers", "modules")

__all__ = ["CutError", "Cuts", "Link", "Memory", "Pipeline", "Running", "cut", "pipeline"]


@dataclass(frozen=True)
class Pipeline:
    """A model that is cut into stages."""

    program: Program
    graph: Graph
    forms: list[Value | None]
    cuts: Cuts
    loss: Callable[..., torch.Tensor] | None

    @property
    def stages(self) -> int:
        """Their number."""
        return len(self.cuts.seconds)

    def module(self, stage: int) -> fx.GraphModule:
        """Give the module of a stage; it has the model's own parameters."""
        return stage_module(self.program, self.graph, *self.cuts.gaps[stage:stage + 2])

    def shared(self) -> list[tuple[str, set[int]]]:
        """Give the parameters that several stages have, with these stages."""
        having: dict[str, set[int]] = {}
        for stage in range(self.stages):
            for name, _ in self.module(stage).named_parameters():
                having.setdefault(name, set()).add(stage)
        return sorted((name, stages) for name, stages in having.items() if len(stages) > 1)

    def start(self, schedule: str = "1f1b", microbatches: int = 8,
              group: dist.ProcessGroup | None = None) -> Running:
        """Give this rank's part, to run under gpipe, 1f1b or interleaved. Raises CutError."""
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        self._check_parameters(ranks)
        modules = {stage: self.module(stage) for stage in range(rank, self.stages, ranks)}
        forms = [crossing(self.graph, self.forms, gap) for gap in self.cuts.gaps]
        return Running(modules, forms, self.shared(), schedule, microbatches,
                       partial(_loss, self.loss, self.program.output_spec) if self.loss else None,
                       group)

    def _check_parameters(self, ranks: int) -> None:
        """Refuse a rank without parameters, for which there is no optimizer. CutError."""
        for rank in range(min(ranks, self.stages)):
            own = range(rank, self.stages, ranks)
            if not any(list(self.module(stage).parameters()) for stage in own):
                raise CutError(f"rank {rank} would have no parameter for its optimizer: the model "
                               f"has too few for {self.stages} stages on {ranks} ranks; fewer are "
                               "possible")

    def describe(self) -> str:
        """Say where the cuts are, a line for each stage."""
        lines = []
        for stage, seconds in enumerate(self.cuts.seconds):
            begin, end = self.cuts.gaps[stage:stage + 2]
            first, last = (self.graph.operators[one] for one in (begin, end - 1))
            sent = self.graph.crossing_bytes[end] / 1e6
            lines.append(f"stage {stage}: {end - begin} operators, {first.name} to {last.name}"
                         f"{f' in {last.layer}' if last.layer else ''}, {1e3 * seconds:.2f} ms"
                         f"{f', sends {sent:.2f} MB' if sent else ''}")
        return "\n".join(lines)


def _loss(loss: Callable[..., torch.Tensor], spec: pytree.TreeSpec, output: Any,
          target: Any) -> torch.Tensor:
    """Give the loss the model's own output, which stages have as a list of tensors."""
    leaves = list(output) if isinstance(output, tuple | list) else [output]
    return loss(pytree.tree_unflatten(leaves, spec), target)


def pipeline(model: nn.Module, example: Sequence[Any], stages: int, *,
             kwargs: Mapping[str, Any] | None = None,
             loss: Callable[..., torch.Tensor] | None = None, target: Any = None,
             link: Link | Sequence[Link] | None = None, memory: Memory | None = None,
             between: str = "operators", group: dist.ProcessGroup | None = None) -> Pipeline:
    """Cut a model into stages so that the slowest is as fast as can be.

    ``example`` is a microbatch's arguments; ``loss(output, target)`` is measured, too, if it is
    given. ``between`` says where cuts may be: between any operators, between layers, or between
    the modules that the model calls, for a model that torch.export cannot follow.

    Raises:
        CutError: the model cannot be followed or cut.
        CapacityError: no cut fits into the memory.

    """
    if between not in KINDS:
        raise CutError(f"between is {between!r}: {', '.join(KINDS)} are possible")
    take = by_modules if between == "modules" else exported
    program = take(model, example, kwargs or {})
    arguments = [*pytree.tree_leaves(tuple(example)), *pytree.tree_leaves(dict(kwargs or {}))]
    found: list[Any] = [None, None, None]
    if not dist.is_initialized() or dist.get_rank(group) == 0:
        found = _found(program, arguments, stages, loss and (lambda output: loss(output, target)),
                       link, memory, between)
    if dist.is_initialized():
        whole = group or dist.group.WORLD
        assert whole is not None
        dist.broadcast_object_list(found, dist.get_global_rank(whole, 0), group)
    if isinstance(found[2], Exception):
        raise found[2]
    return Pipeline(program, found[0], found[1], found[2], loss)


def _found(program: Program, arguments: list[Any], stages: int,
           loss: Callable[[Any], torch.Tensor] | None, link: Link | Sequence[Link] | None,
           memory: Memory | None, between: str) -> list[Any]:
    """Measure and search; an error is given back, so that every rank has it."""
    try:
        graph, forms = measured(program, arguments, loss)
        gaps = graph.layer_boundaries if between == "layers" else None
        return [graph, forms, cut(graph, stages, link=link, memory=memory, gaps=gaps)]
    except (CutError, RuntimeError) as error:
        return [None, None, error]
