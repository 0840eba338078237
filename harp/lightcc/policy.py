"""The choice of a plan for an allreduce, for real groups and for the simulator.

The LIGHT_* settings come first (`harp.lightcc.settings`), then a table of `sim.tune`, if HARP_TUNER
names one (`harp.collectives.tuning`), then a threshold between few steps and few bytes.

>>> from harp.lightcc.settings import LightSettings
>>> path = allreduce_path(LightSettings(two_d=True, intra_size=4), ranks=16, nbytes=1 << 20)
>>> path.plan, path.parameters
('2d', {'group': 4})
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from harp.collectives.tuning import Tuning, TuningError
from harp.lightcc.settings import WHOLE_BITS
from harp.reading import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harp.lightcc.settings import Choice, LightSettings

FP16_BYTES, FP32_BYTES = 2, 4
_PLAN_OF_ROW = {"Tree": "tree", "Ring": "ring"}
"""NCCL's algorithms that have a plan here."""
_FLAT_FEW_BITS = {"few-bits": "few-bits", "few-bits-ring": "ring-few-bits"}
"""Plans in few bits in which each rank is a host, by the settings' name."""


class PlanPath(NamedTuple):
    """The algorithm and format in which a tensor is sent."""

    plan: str
    parameters: Mapping[str, Any]
    """Arguments of the plan (`harp.collectives.registry.make_plan`)."""
    why: str
    """The setting that decided, for people."""


def allreduce_path(settings: LightSettings, ranks: int, nbytes: int, *, element_bytes: int = 4,
                   sparse: bool = True, tuning: Tuning | None = None, hosts: int = 1) -> PlanPath:
    """Give the path of ``nbytes`` bytes over ``ranks`` ranks on ``hosts`` hosts.

    Without ``sparse`` all of them must arrive, whole: torch's ``all_reduce`` promises so.
    """
    choice = settings.choose(nbytes, sparse=sparse)
    if choice.sparse:
        return _sparse_path(choice, ranks, element_bytes)
    if choice.bits < WHOLE_BITS:
        if (path := _few_bits_path(choice, ranks, element_bytes)) is not None:
            return path
        choice = replace(settings, bits=WHOLE_BITS).choose(nbytes, sparse=sparse)
    if choice.algorithm == "2d":
        group = min(choice.intra_size, ranks)
        if ranks % group == 0:
            return PlanPath("2d", {"group": group}, choice.why)
        return PlanPath("ring", {}, _no_groups(ranks, group))
    for row in tuning.find(ranks, hosts, "AllReduce", nbytes) if tuning else ():
        if row.algorithm in _PLAN_OF_ROW:
            plan = _PLAN_OF_ROW[row.algorithm]
            group = ranks // hosts if ranks % hosts == 0 else 1
            return PlanPath(plan, {"group": group} if plan == "tree" else {},
                            f"the table of HARP_TUNER has {row.algorithm} from {row.min_bytes} to "
                            f"{row.max_bytes} B")
    return PlanPath(choice.algorithm, {}, choice.why)


def between_path(settings: LightSettings, hosts: int, bucket_bytes: int, part_bytes: int, *,
                 sparse: bool, tuning: Tuning | None = None) -> PlanPath:
    """Give the path between hosts of the part of a bucket that a rank has of its host's sum.

    That hosts have divided the bucket makes it 2D, whatever LIGHT_2D_ALLREDUCE is.
    """
    choice = settings.choose(bucket_bytes, sparse=sparse)
    if choice.sparse:
        return _sparse_path(replace(choice, algorithm="sparse-flat"), hosts, FP32_BYTES)
    if choice.bits < WHOLE_BITS:
        return PlanPath(_FLAT_FEW_BITS.get(choice.algorithm, "few-bits"), {"bits": choice.bits},
                        choice.why)
    return allreduce_path(replace(settings, two_d=False), hosts, part_bytes, sparse=False,
                          tuning=tuning, hosts=hosts)


def tuning_of(environment: Mapping[str, str]) -> Tuning | None:
    """Read the table that HARP_TUNER names, if it is set. Raises ValueError for no table."""
    named = environment.get("HARP_TUNER")
    if not named:
        return None
    try:
        return Tuning.from_json(read_text(named))
    except UnicodeDecodeError:
        raise ValueError(f"HARP_TUNER {named}: it is not text") from None
    except (OSError, TuningError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"HARP_TUNER {named}: {reason}") from None


def _sparse_path(choice: Choice, ranks: int, element_bytes: int) -> PlanPath:
    group = min(choice.intra_size, ranks)
    halved = choice.fp16 or element_bytes == FP16_BYTES
    parameters: dict[str, Any] = {"ratio": float(choice.ratio),
                                  "value_bytes": FP16_BYTES if halved else FP32_BYTES}
    if choice.algorithm == "sparse-2d" and ranks % group == 0:
        return PlanPath("2d-topk", {"group": group} | parameters, choice.why)
    why = choice.why if choice.algorithm == "sparse-flat" else _no_groups(ranks, group)
    return PlanPath("topk", parameters, why)


def _few_bits_path(choice: Choice, ranks: int, element_bytes: int) -> PlanPath | None:
    """Give the path in few bits; None where there is nothing to send so.

    That is within one group, and of elements that are not float32.
    """
    group = min(choice.intra_size, ranks)
    if element_bytes != FP32_BYTES or (choice.algorithm == "few-bits-2d" and group == ranks):
        return None
    if choice.algorithm == "few-bits-2d" and ranks % group == 0:
        return PlanPath("2d-few-bits", {"group": group, "bits": choice.bits}, choice.why)
    why = choice.why if choice.algorithm in _FLAT_FEW_BITS else _no_groups(ranks, group)
    return PlanPath(_FLAT_FEW_BITS.get(choice.algorithm, "few-bits"), {"bits": choice.bits}, why)


def _no_groups(ranks: int, group: int) -> str:
    return f"groups of LIGHT_INTRA_SIZE {group} do not divide {ranks} ranks"
