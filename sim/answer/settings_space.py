"""Settings by which a job's gradients travel: what may be chosen, and what that is elsewhere.

A `Point` names a value for each axis that has a meaning for its algorithm. The same point is a
scenario of the simulator (`scenario_of`) and environment variables of a job (`environment_of`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from sim.answer.scenario import Settings
from sim.cluster.placement import choose_gpus, common_group
from sim.schema.nccl_defaults import uses_sockets
from sim.schema.parameters import FrameworkSet, derives_from
from sim.schema.scenario_keys import Light

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario

    Value = str | int | float
    Point = Mapping[str, Value]

MIB = 1 << 20
NCCL, RING, TWO_D, TOPK, TWO_D_TOPK = "nccl", "ring", "2d", "topk", "2d-topk"
SPARSE = (TOPK, TWO_D_TOPK)
GROUPED = (TWO_D, TWO_D_TOPK)


@dataclass(frozen=True)
class Space:
    """Values of each axis, the default first."""

    algorithm: tuple[str, ...]
    """nccl, or LightCC's ring, 2d, topk and 2d-topk."""
    intra_size: tuple[int, ...]
    """LIGHT_INTRA_SIZE, for 2d and 2d-topk."""
    fusion: tuple[int, ...]
    """Bytes of a bucket."""
    ratio: tuple[float, ...] = (0.01,)
    """LIGHT_TOPK_RATIO. Smaller ones are always faster; what training bears is not simulated."""
    threshold: tuple[int, ...] = (MIB, 64 << 10, 16 * MIB)
    """LIGHT_TOPK_THRESHOLD."""
    fp16: tuple[int, ...] = (0, 1)
    """LIGHT_TOPK_FP16."""
    channels: tuple[int, ...] = (1, 2, 4, 8)
    """NCCL's; LightCC has one connection to each peer."""
    paths: tuple[int, ...] = (1, 2, 4)
    """HARP_PATHS."""
    engines: tuple[int, ...] = (1, 2)
    """HARP_ENGINES."""

    @classmethod
    def of(cls, cluster: Cluster, scenario: Scenario, *, lossless: bool = False,
           ratios: tuple[float, ...] = (0.01,)) -> Space:
        """Give what makes sense for a cluster: groups that divide its ranks, HARP's own knobs."""
        ranks = cluster.gpus
        host = common_group(cluster, choose_gpus(cluster, range(cluster.hosts), ranks,
                                                 affinity=scenario.affinity))
        sizes = sorted((size for size in range(2, ranks) if ranks % size == 0),
                       key=lambda size: (size != host, size))
        default = scenario.fusion.threshold_bytes(fusion_rule(cluster, scenario))
        algorithms = [NCCL, RING] + ([TWO_D] if sizes else [])
        if not lossless:
            algorithms += [TOPK] + ([TWO_D_TOPK] if sizes else [])
        harp = not uses_sockets(scenario.stack, cluster.topology.stacks)
        return cls(tuple(algorithms), tuple(sizes[:6]) or (1,), tuple(dict.fromkeys(
            [default, *(MIB * size for size in (1, 4, 16, 25, 64, 128))])), ratios,
            paths=(1, 2, 4) if harp else (1,), engines=(1, 2) if harp else (1,))

    def values(self, axis: str) -> tuple[Value, ...]:
        """Give the values of an axis."""
        found: tuple[Value, ...] = getattr(self, axis)
        return found

    def points(self) -> Iterator[Point]:
        """Give all that can be chosen: the full grid."""
        for algorithm in self.algorithm:
            axes = axes_of(algorithm)
            for chosen in product(*(self.values(axis) for axis in axes)):
                yield {"algorithm": algorithm, **dict(zip(axes, chosen, strict=True))}

    def default(self) -> Point:
        """Give the point of all defaults."""
        return self.point({})

    def point(self, chosen: Point) -> Point:
        """Complete a choice by defaults, and leave out what its algorithm does not ask for."""
        algorithm = str(chosen.get("algorithm", self.algorithm[0]))
        return {"algorithm": algorithm, **{axis: chosen.get(axis, self.values(axis)[0])
                                           for axis in axes_of(algorithm)}}


def axes_of(algorithm: str) -> tuple[str, ...]:
    """Name the axes that have a meaning for an algorithm."""
    axes = ["fusion", "paths", "engines"]
    if algorithm == NCCL:
        axes.append("channels")
    if algorithm in GROUPED:
        axes.append("intra_size")
    if algorithm in SPARSE:
        axes += ["ratio", "threshold", "fp16"]
    return tuple(axes)


def fusion_rule(cluster: Cluster, scenario: Scenario) -> str:
    """``cycle`` (Horovod) or ``size`` (DDP)."""
    topology = cluster.topology
    framework = scenario.framework or topology.workload.framework
    by_size = derives_from(framework, "ddp", topology.frameworks, "frameworks", FrameworkSet)
    return scenario.fusion.rule or ("size" if by_size else "cycle")


def scenario_of(scenario: Scenario, point: Point, fidelity: str) -> tuple[Scenario, Settings]:
    """Give what the simulator runs."""
    algorithm = str(point["algorithm"])
    light = {name: value for name, value in environment_of(point, "").items()
             if name.startswith("LIGHT_")}
    numbers = {name: float(value) if name == "LIGHT_TOPK_RATIO" else int(value)
               for name, value in light.items()}
    changed = scenario.model_copy(update={
        "allreduce": "nccl" if algorithm == NCCL else "light",
        "light": Light.model_validate(numbers) if light else None,
        "fusion": scenario.fusion.model_copy(update={"threshold": point["fusion"]}),
        "channels": point.get("channels", 1), "sockets": point["paths"]})
    return changed, Settings({f"{scenario.stack}.threads": float(point["engines"])},
                             fidelity=fidelity)


def environment_of(point: Point, rule: str) -> dict[str, str]:
    """Give the variables that make a job do so; DDP's bucket size is an argument, not a variable.

    Args:
        point: what was chosen.
        rule: by which gradients fuse.
    """
    algorithm = str(point["algorithm"])
    found: dict[str, Value] = {"HARP_PATHS": point["paths"], "HARP_ENGINES": point["engines"]}
    if rule == "cycle":
        found["HOROVOD_FUSION_THRESHOLD"] = point["fusion"]
    if algorithm == NCCL:
        found |= {"NCCL_MIN_NCHANNELS": point["channels"], "NCCL_MAX_NCHANNELS": point["channels"]}
    else:
        found |= {"LIGHT_2D_ALLREDUCE": int(algorithm in GROUPED),
                  "LIGHT_TOPK_ALLREDUCE": int(algorithm in SPARSE)}
    if algorithm in GROUPED:
        found["LIGHT_INTRA_SIZE"] = point["intra_size"]
    if algorithm in SPARSE:
        found |= {"LIGHT_TOPK_RATIO": point["ratio"], "LIGHT_TOPK_THRESHOLD": point["threshold"],
                  "LIGHT_TOPK_FP16": point["fp16"]}
    return {name: str(value) for name, value in found.items()}
