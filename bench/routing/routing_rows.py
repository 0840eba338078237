"""Planned routes: load of the fullest link and completion under ECMP, spraying and a plan.

Flows of 64 MiB on 64, 256 and 1,024 hosts by max-min fair sharing (`flow`), on 64 hosts by HARP's
sessions packet by packet (`packet`), and those of eight hosts' real engines through kernel routers
(`lab`, planned_paths.py; root). cases.py has fabrics and traffics; loads are demand over capacity.
ECMP is the mean of several draws of source ports. Of several jobs, "plan" is one plan for all;
"alone" plans each as if it were alone, "around" around those before it. CPU time is that of the
plan, and of planning anew after one cable failed, median and worst of many; "of bound" is the bound
over the load after that, at its worst. Failed cables are drawn anew with ``--only``.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from bench.routing import planned_paths
from bench.routing.cases import (
    ECMP_DRAWS,
    LEAVES,
    TRAFFICS,
    Case,
    alone,
    around,
    cases,
    flows_of,
    hashed,
    together,
)
from bench.routing.max_min import flow_ms, max_load
from bench.routing.packet_time import bound_ms, completion_ms
from bench.rows import Row, by_id
from bench.subject import BenchError, Subject
from harp.routing.jobs import replan_jobs
from lab.wiring import why_unusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from harp.routing.deployment import Deployment
    from harp.routing.fabric import Fabric, Flows

    Ints = NDArray[np.int64]

FIDELITIES = ("flow", "packet", "lab")
FLOW_BYTES = 64 << 20
PACKET_DRAWS = 3
FAILURES = 24
PLAN_TARGET_S, REPLAN_TARGET_S = 2.0, 1.0
BOUND_TARGET, LAB_GAIN_TARGET, LAB_BOUND_TARGET = 0.99, 1.5, 0.95
PLANS: dict[str, Callable[[Case], list[Deployment]]] = {
    "alone": alone, "around": around, "plan": together}


class Outcome(NamedTuple):
    """Load and completion of all flows of a case."""

    load: float
    ms: float


class Replan(NamedTuple):
    """CPU time of planning, and of planning anew after failures."""

    plan_s: float
    median_s: float
    worst_s: float
    share: float
    """Collision-free bound over load after a failure, at its worst; 1 is the best possible."""


class Result(NamedTuple):
    """A case by routing."""

    name: str
    outcomes: dict[str, Outcome]
    bound: Outcome
    replan: Replan | None

    @classmethod
    def of(cls, made: dict[str, Any]) -> Result:
        """Read what `to_json` wrote."""
        again = made["replan"]
        return cls(made["id"], {one: Outcome(*got) for one, got in made["outcomes"].items()},
                   Outcome(*made["bound"]), again and Replan(*again))

    def to_json(self) -> dict[str, Any]:
        """Return it for `--save`."""
        return {"id": self.name, "outcomes": self.outcomes, "bound": self.bound,
                "replan": self.replan}


def flow_outcome(fabric: Fabric, flows: Flows, *, spray: bool = False) -> Outcome:
    """Load at line rate, and completion by max-min fair sharing."""
    return Outcome(max_load(fabric, flows, spray=spray),
                   flow_ms(fabric, flows, FLOW_BYTES, spray=spray))


def packet_outcome(fabric: Fabric, flows: Flows, *, spray: bool = False) -> Outcome:
    """Load at line rate, and completion packet by packet."""
    return Outcome(max_load(fabric, flows, spray=spray),
                   completion_ms(fabric, flows, FLOW_BYTES, spray=spray))


def outcomes(case: Case, plans: dict[str, list[Deployment]], fidelity: str) -> dict[str, Outcome]:
    """All routings of a case."""
    run, draws = ((flow_outcome, ECMP_DRAWS) if fidelity == "flow" else
                  (packet_outcome, PACKET_DRAWS))
    rng = np.random.default_rng(1)
    drawn = [run(case.fabric, hashed(case, rng)) for _ in range(draws)]
    return {"ecmp": Outcome(*np.mean(drawn, axis=0).tolist()),
            "spray": run(case.fabric, hashed(case, rng), spray=True),
            **{name: run(case.fabric, flows_of(case, made)) for name, made in plans.items()}}


def replanned(case: Case, plans: Sequence[Deployment], rng: np.random.Generator) -> Replan:
    """Plan anew after one cable between switches failed, one after the other."""
    fabric = case.fabric
    inner = np.flatnonzero((fabric.link_src < len(fabric.switches))
                           & (fabric.link_dst < len(fabric.switches)))
    times, shares = [], []
    for link in rng.choice(inner, FAILURES, replace=False):
        degraded = fabric.without([link, link ^ 1])
        start = time.process_time()
        again = replan_jobs(degraded, case.jobs, plans)
        times.append(time.process_time() - start)
        for plan in again:
            plan.verify(degraded)
        shares.append(again[0].bound / again[0].max_load)
    start = time.process_time()
    together(case)
    return Replan(time.process_time() - start, float(np.median(times)), max(times), min(shares))


def measure_case(case: Case, fidelity: str, rng: np.random.Generator) -> Result:
    """Run a case at a fidelity that simulates."""
    plans = {name: make(case) for name, make in PLANS.items()
             if name == "plan" or len(case.jobs) > 1}
    nic_bps = float(case.fabric.link_bps[0])
    ms = 8e3 * FLOW_BYTES / nic_bps if fidelity == "flow" else bound_ms(nic_bps, FLOW_BYTES)
    bound = plans["plan"][0].bound
    again = replanned(case, plans["plan"], rng) if fidelity == "flow" else None
    return Result(f"{fidelity}-{case.name}", outcomes(case, plans, fidelity),
                  Outcome(bound, ms * max(bound, 1.0)), again)


def row(name: str, value: float, unit: str, *, least: float | None = None,
        most: float | None = None) -> dict[str, Any]:
    """A row of ``--json``."""
    ok = (least is None or value >= least) and (most is None or value <= most)
    return {"id": name, "value": value, "unit": unit, "target": most if least is None else least,
            "ok": bool(ok)}


def records(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of ``--json``, of a case or of real engines."""
    if "outcomes" not in made:
        yield from lab_records(made)
        return
    name, found, bound, again = Result.of(made)
    for routing, (load, ms) in found.items():
        least = found["ecmp"] if routing == "plan" else None
        limit = min(bound.load / BOUND_TARGET, least.load) if least else None
        yield row(f"{name}-{routing}-load", load, "demand/capacity", most=limit)
        yield row(f"{name}-{routing}-completion", ms, "ms", most=least.ms if least else None)
    if again is not None:
        yield row(f"{name}-plan-time", again.plan_s, "s", most=PLAN_TARGET_S)
        yield row(f"{name}-replan-median", again.median_s, "s")
        yield row(f"{name}-replan-worst", again.worst_s, "s", most=REPLAN_TARGET_S)
        yield row(f"{name}-replan-share-of-bound", again.share, "1", least=BOUND_TARGET)


ROUTINGS = {"ecmp": "ECMP", "spray": "spray", "alone": "alone", "around": "around", "plan": "plan"}
_COLUMNS = (*ROUTINGS.values(), "bound", *ROUTINGS.values(), "bound", "plan", "median", "worst")
HEADER = (f"{'':32}{'fullest link':^40}  {'completion, ms':^44}  {'plan, re-plan: CPU s':^28}\n"
          f"{'':32}" + "".join(f"{name:>7}" for name in _COLUMNS) + " of bound")


def line(made: dict[str, Any]) -> str:
    """One line for people; those of the lab stand below the table."""
    if "outcomes" not in made:
        return ""
    name, found, bound, again = Result.of(made)

    def cells(what: str) -> str:
        got = [getattr(found[one], what) if one in found else None for one in ROUTINGS]
        return "".join(f"{'':7}" if one is None else f"{one:7.2f}"
                       for one in (*got, getattr(bound, what)))

    text = f"{name:32}" + cells("load") + cells("ms")
    if again is None:
        return text
    times = "".join(f"{one:7.3f}" for one in again[:-1])
    return f"{text}{times}{again.share:9.2f}"


LAB = "lab-"


def _kinds(made: dict[str, Any]) -> list[str]:
    return [key[:-7] for key in made if key.endswith("_most_s")]


def lab_records(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of real engines between namespaces."""
    name = f"lab-leaf-spine-8-{made['id'].removeprefix(LAB).replace(' ', '-')}"
    kinds = _kinds(made)
    for kind in (*kinds, "bound"):
        yield row(f"{name}-{kind}-completion", made[f"{kind}_s"], "s")
    for kind in kinds:
        if f"{kind}_gain" in made:
            yield row(f"{name}-{kind}-gain", made[f"{kind}_gain"], "1", least=LAB_GAIN_TARGET)
            yield row(f"{name}-{kind}-share-of-bound", made[f"{kind}_of_bound"], "1",
                      least=LAB_BOUND_TARGET)


def lab_lines(made: dict[str, Any]) -> Iterator[str]:
    """Lines for people."""
    for kind in _kinds(made):
        yield (f"  lab, {made['id'].removeprefix(LAB):10} {kind:9}{made[f'{kind}_s']:7.3f} "
               f"({made[f'{kind}_least_s']:.3f} to {made[f'{kind}_most_s']:.3f})"
               f"{made['bound_s'] / made[f'{kind}_s']:6.2f}")


def footer(results: Sequence[dict[str, Any]]) -> str:
    """The lines of the lab, and the rows that missed their targets."""
    lab = [text for made in results if made["id"].startswith(LAB) for text in lab_lines(made)]
    title = ("real engines, 8 hosts under 4 spines: completion in s, median (least to most); of "
             "bound")
    missed = [one for made in results for one in records(made) if not one["ok"]]
    return "\n".join((*(["", title, *lab] if lab else []), *(["", "missed: " + ", ".join(
        f"{one['id']} {one['value']:.3f} ({one['target']:.3f})" for one in missed)]
        if missed else [])))


def sizes(fidelity: str) -> tuple[int, ...]:
    """Numbers of hosts at a fidelity that simulates."""
    return tuple(LEAVES) if fidelity == "flow" else (min(LEAVES),)


def measure(rows: Sequence[Row], fidelity: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run the cases in their order, then the lab."""
    names = {row.id: row for row in rows
             if not fidelity or row.id.partition("-")[0] in fidelity}
    for each in FIDELITIES[:2]:
        rng, wanted = np.random.default_rng(1), sum(name.startswith(f"{each}-") for name in names)
        for hosts in sizes(each):
            for case in cases(hosts, rng) if wanted else ():
                if one := names.get(f"{each}-{case.name}"):
                    wanted -= 1
                    yield one.function(case, each, rng).to_json()
    lab = [name.removeprefix(LAB) for name in names if name.startswith(LAB)]
    if lab and (why := why_unusable()):
        raise BenchError(f"fidelity lab {why}; --fidelity flow and packet do not")
    for name, made in planned_paths.measure_traffics(lab) if lab else ():
        yield {"id": f"{LAB}{name}", **made}


TARGET = f"load ≤ bound / {BOUND_TARGET}, and load and completion ≤ ECMP's"
ROWS = by_id((*(
    Row(f"{each}-{kind}-{hosts}-{traffic}", f"{traffic} of {hosts:,} hosts, {kind}, {each}",
        measure_case, reference="ECMP", target=TARGET)
    for each in FIDELITIES[:2] for hosts in sizes(each)
    for kind in ("leaf-spine", "three-tier") for traffic in TRAFFICS), *(
    Row(f"{LAB}{name}", f"{name}, 8 hosts under 4 spines, real engines",
        partial(planned_paths.measure_traffics, [name]), reference="hashed ports",
        target=f"≥ {LAB_GAIN_TARGET} and {LAB_BOUND_TARGET} of the bound")
    for name in planned_paths.TRAFFICS)))
SUBJECT = Subject(__doc__ or "", ROWS, measure, [
    click.Option(["--fidelity"], type=click.Choice(FIDELITIES), multiple=True,
                 help="Default: all."),
], HEADER, line, footer, records)
