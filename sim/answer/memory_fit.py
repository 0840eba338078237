"""Check that a step fits into the GPUs' memory, and find the nearest change that would make it fit.

Changes are tried in the order of what they cost: attention that keeps no scores, blocks computed
again, smaller batches with more micro-steps, shards, splits; then several at once. Only what the
file's own checks let through is named.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sim.schema.parallel_checks import check_parallel
from sim.schema.parallel_keys import Parallel
from sim.step.gpu_memory import count
from sim.step.groups import Groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sim.records.results import Memory
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology
    from sim.step.recipe import Recipe

    Change = dict[str, Any]

_RECIPE = ("flash", "recompute", "batch", "accumulation")
"""Changes that are keys of the workload; the others stand under parallel."""


def too_large(memory: Memory, recipe: Recipe, groups: Groups, limit: int, topology: Topology,
              scenario: Scenario) -> tuple[str, str]:
    """Say what a step needs of a GPU's ``limit``, and what is allowed, as clauses of an error.

    No change makes an outer optimizer's memory less.
    """
    outer = memory.total - count(recipe, groups).total
    allows = partial(_allows, topology, scenario)
    parts = [(name, getattr(memory, name)) for name in (
        "weights", "gradients", "optimizer", "activations", "buffers")]
    says = (f"a step needs {_gib(memory.total)} of the {_gib(limit)} of a GPU ("
            + ", ".join(f"{name} {_gib(nbytes)}" for name, nbytes in parts if nbytes) + ")")
    for change in _changes(recipe, groups):
        made = _changed(recipe, groups, change, allows)
        if made is not None and (total := count(*made).total + outer) <= limit:
            keys = ", ".join(_text(change))
            return says, f"less, as with {keys} ({_gib(total)})"
    if scenario.sync is not None:
        return says, "less, with more GPUs in each host, no sync, or a smaller model"
    return says, "less, with more GPUs or a smaller model"


def _allows(topology: Topology, scenario: Scenario, layout: Parallel, accumulation: int) -> bool:
    """Whether the file with this layout passes its checks."""
    changed = topology.model_copy(update={
        "workload": topology.workload.model_copy(update={"accumulation": accumulation})})
    changed_scenario = scenario.model_copy(update={"parallel": layout, "tensor": 1})
    return not any(check_parallel(changed, changed_scenario, ()))


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _text(change: Change) -> Iterator[str]:
    for key, value in change.items():
        if key in _RECIPE:
            yield f"{key}: {str(value).lower()}"
    layout = [f"{key}: {str(value).lower()}" for key, value in change.items() if key not in _RECIPE]
    if layout:
        yield f"parallel: {{{', '.join(layout)}}}"


def _changes(recipe: Recipe, groups: Groups) -> Iterator[Change]:
    """Changes to try, the smallest first."""
    known = recipe.model.shape is not None
    cheap: list[Change] = []
    if known and not recipe.flash:
        cheap.append({"flash": True})
    if known and recipe.recompute != "full":
        cheap.append({"recompute": "full"})
    cheap += [{"batch": recipe.batch // times, "accumulation": recipe.accumulation * times}
              for times in range(2, recipe.batch + 1) if recipe.batch % times == 0]
    shards: list[Change] = [{"shard": shard} for shard in ("zero1", "zero2", "hsdp", "fsdp")]
    splits: list[Change] = [{"tensor": 1 << power, "sequence": True}
                            for power in range(1, groups.host.bit_length())]
    stages: list[Change] = [{"pipeline": 1 << power}
                            for power in range(1, groups.ranks.bit_length())]
    yield from chain(cheap, shards, splits, stages)
    least: Change = {}
    for change in cheap:
        least |= change
    yield least
    for shard in shards:
        yield from (shard | change for change in cheap)
        yield shard | least
    for split in splits:
        yield split | least
        yield split | {"shard": "fsdp"} | least
    for stage in stages:
        for split in splits:
            yield stage | split | {"shard": "zero1"} | least


def _changed(recipe: Recipe, groups: Groups, change: Change,
             allows: Callable[[Parallel, int], bool]) -> tuple[Recipe, Groups] | None:
    """The recipe with a change; None where it is not possible."""
    given = {key: value for key, value in change.items() if key not in _RECIPE}
    try:
        layout = Parallel.model_validate(recipe.layout.model_dump() | {"data": None} | given)
    except ValidationError:
        return None
    own = {key: value for key, value in change.items() if key in _RECIPE}
    made = replace(recipe, layout=layout, **own)
    if groups.ranks % layout.split or not allows(layout, made.accumulation):
        return None
    return made, Groups(layout, groups.ranks, groups.host)
