"""Times of one collective by every algorithm and size, as nccl-tests measures them."""

from __future__ import annotations

import re
from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING

from harp.collectives.registry import make_plan
from sim.answer.scenario import Settings
from sim.answer.timer import Timer
from sim.cluster.placement import EXCHANGES, choose_gpus, common_group, place
from sim.network.interface import TooLargeError
from sim.network.nccl import PLANS, Choice, View, choose, chosen_plan, tuned_choice
from sim.records.busbw import collective_row
from sim.records.results import CollectiveReport
from sim.schema.input_errors import Problem
from sim.schema.nccl_defaults import channel_count
from sim.schema.size import MOST_FLOWS
from sim.schema.units import SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harp.collectives.tuning import Tuning
    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology

ALGORITHMS = {
    "allreduce": ("ring", "tree", "halving-doubling", "2d"),
    "reduce-scatter": ("reduce-scatter",),
    "allgather": ("allgather",),
    "broadcast": ("broadcast",),
    "alltoall": ("alltoall", "hierarchical-alltoall"),
}
"""Plans of each collective; those that need groups are left out where hosts have one GPU."""
GROUPED = ("2d", "hierarchical-alltoall")
UNIT_BYTES = 4
MOST_SIZES = 1000


def parse_sizes(text: str) -> list[int]:
    """Sizes of ``FROM:TO:FACTOR``, or of one size: bytes, with or without a unit.

    Raises ValueError, whose text is a sentence for the user.
    """
    parts = text.split(":")
    if len(parts) not in (1, 3):
        raise ValueError("give FROM:TO:FACTOR, e.g. 8:4GiB:2, or one size")
    first, last = _bytes(parts[0]), _bytes(parts[1] if len(parts) == 3 else parts[0])
    try:
        factor = float(parts[2]) if len(parts) == 3 else 2.0
    except ValueError:
        raise ValueError(f"the factor {parts[2]!r} is not a number") from None
    if not 0 < first <= last:
        raise ValueError("FROM must be above 0 and at most TO")
    if not 1 < factor <= 1e6:
        raise ValueError("the factor must be above 1")
    sizes: list[int] = []
    size = float(first)
    while size <= last and len(sizes) <= MOST_SIZES:
        sizes.append(max(int(size) // UNIT_BYTES, 1) * UNIT_BYTES)
        size *= factor
    if len(sizes) > MOST_SIZES:
        raise ValueError(f"there are more than {MOST_SIZES} sizes; give a larger factor")
    return list(dict.fromkeys(sizes))


def _bytes(text: str) -> int:
    try:
        return int(text) if re.fullmatch(r"[+-]?\d{1,25}", text) else int(SIZE.parse(text))
    except Problem as problem:
        raise ValueError(f"{problem}; allowed: {problem.allowed}") from None


def measure(cluster: Cluster, collective: str, sizes: Sequence[int], stack: str | None = None,
            scenario: Scenario | None = None,
            settings: Settings | None = None, algorithms: Sequence[str] | None = None, *,
            chosen: bool = False, tuning: Tuning | None = None,
            explain: bool = False) -> CollectiveReport:
    """Simulate ``collective`` over all GPUs by each algorithm at each size, without other jobs.

    Every row meets the same flows of the scenario's background traffic. Style (routing, channels,
    sockets, bond, affinity) and stack default to the scenario's, and the scenario to the first one.
    ``settings`` changes figures of the stack and chooses the fidelity. ``algorithms`` defaults to
    all those of the collective; "nccl" is NCCL's own choice, "tuned" its choice by ``tuning``. With
    ``chosen`` each algorithm that NCCL tunes runs by the protocol that NCCL would choose. With
    ``explain`` rows say what their time is due to.
    """
    topology = cluster.topology
    scenario = scenario or topology.scenarios[0]
    settings = settings or Settings()
    host_stack = settings.stack(topology, stack or scenario.stack)
    gpus = choose_gpus(cluster, range(cluster.hosts), cluster.gpus, affinity=scenario.affinity)
    placement = place(cluster, gpus, channel_count(topology, scenario),
                      affinity=scenario.affinity)
    group = common_group(cluster, gpus)
    timer = Timer(cluster, host_stack, scenario, placement, fidelity=settings.fidelity,
                  background=topology.background_of(scenario), seed=settings.seed,
                  explain=explain)
    view = View.of(cluster, scenario, gpus)
    every = (*ALGORITHMS[collective], *(("nccl",) if collective in PLANS else ()),
             *(("tuned",) if tuning is not None else ()))
    rows = []
    with closing(timer):
        for size, algorithm in product(sizes, algorithms or every):
            if cluster.gpus == 1 or (algorithm in GROUPED and group == 1):
                continue
            if algorithm in EXCHANGES:
                _check_flows(topology, cluster.gpus, group if algorithm in GROUPED else 1,
                             len(placement.of(algorithm)))
            choice = _choice_of(algorithm, view, collective, size, tuning, chosen=chosen)
            name = algorithm if choice is None or algorithm == "tuned" else "NCCL"
            if choice is not None:
                plan = chosen_plan(choice, view.ranks, size, unit_bytes=UNIT_BYTES, group=group)
            else:
                plan = make_plan(algorithm, ranks=cluster.gpus, nbytes=size, unit_bytes=UNIT_BYTES,
                                 group=group, chunk_bytes=size)
            try:
                time_s = (timer.seconds(plan) if choice is None else
                          timer.seconds(plan, choice.protocol, choice.channels))
            except TooLargeError as error:
                raise topology.error(Problem(f"{collective} by {name} of {size} B: {error}",
                                             allowed="smaller --sizes, or --fidelity flow")
                                     ) from error
            rows.append(collective_row(collective, name, ranks=cluster.gpus, size_bytes=size,
                                       time_s=time_s, choice=choice.name if choice else "",
                                       limits=timer.limits))
    return CollectiveReport(topology.name, topology.seed, collective, cluster.gpus, "float",
                            tuple(rows), effort=timer.effort)


def _check_flows(topology: Topology, ranks: int, group: int, channels: int) -> None:
    """Raise TopologyError where each rank sends to too many others, or to its equals elsewhere."""
    flows = channels * ranks * (ranks // group - 1)
    if flows > MOST_FLOWS:
        raise topology.error(Problem(
            f"{flows:,} flows at once in an all-to-all of {ranks:,} GPUs", path=("hosts",),
            allowed=f"at most {MOST_FLOWS:,}, with fewer GPUs or channels"))


def _choice_of(algorithm: str, view: View, collective: str, size: int, tuning: Tuning | None, *,
               chosen: bool) -> Choice | None:
    """NCCL's choice; None where the algorithm is fixed."""
    if algorithm == "tuned" and tuning is not None:
        return tuned_choice(view, collective, size, tuning)
    if algorithm == "nccl":
        return choose(view, collective, size)
    if chosen and algorithm in PLANS.get(collective, ()):
        return choose(view, collective, size, [algorithm])
    return None
