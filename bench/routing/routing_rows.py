"""What planned routes buy: max link load and completion under ECMP, spray and the plan.

    python bench/routing/routing_rows.py [--fidelity flow|packet|lab] [--json] [--save FILE] [--show FILE]

The lab needs root. ``--save`` keeps what was measured in a file, in the place of what was there of
the same rows, and ``--show`` prints it again (docs/routing-plans.md does).

Flows of 64 MiB on 64, 256 and 1,024 hosts by max-min fair sharing (`flow`), on 64 hosts by HARP's
sessions packet by packet (`packet`), and those of eight hosts' real engines through kernel routers
(`lab`, bench/routing/planned_paths.py). Fabrics and traffics are those of bench/routing/cases.py; loads are
demand over capacity. ECMP is the mean of several draws of source ports. Of several jobs, "plan" is
one plan for all; "alone" plans each as if it were alone, "around" around those before it. CPU time
is that of the plan, and of planning anew after one cable failed, median and worst of many; "of
bound" is the bound over the load after that, at its worst.

Ends with status 1 if a target is missed; ``--json`` prints a list of {id, value, unit, target, ok}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np
from bench.routing.cases import ECMP_DRAWS, LEAVES, Case, alone, around, cases, flows_of, hashed, together
from bench.routing.max_min import flow_ms, max_load
from bench.routing.packet_time import bound_ms, completion_ms

from harp.routing.jobs import replan_jobs

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
    """What all flows of a case come to."""

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
    def of(cls, name: str, told: dict[str, Any]) -> Result:
        """Read what `told` wrote."""
        again = told["replan"]
        return cls(name, {one: Outcome(*made) for one, made in told["outcomes"].items()},
                   Outcome(*told["bound"]), again and Replan(*again))

    def told(self) -> dict[str, Any]:
        """For `--save`."""
        return {"outcomes": self.outcomes, "bound": self.bound, "replan": self.replan}


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


def results(fidelity: str) -> Iterator[Result]:
    """Run all cases of a fidelity that simulates."""
    rng = np.random.default_rng(1)
    for hosts in LEAVES if fidelity == "flow" else (min(LEAVES),):
        for case in cases(hosts, rng):
            plans = {name: make(case) for name, make in PLANS.items()
                     if name == "plan" or len(case.jobs) > 1}
            nic_bps = float(case.fabric.link_bps[0])
            ms = (8e3 * FLOW_BYTES / nic_bps if fidelity == "flow" else
                  bound_ms(nic_bps, FLOW_BYTES))
            bound = plans["plan"][0].bound
            again = replanned(case, plans["plan"], rng) if fidelity == "flow" else None
            yield Result(f"{fidelity}-{case.name}", outcomes(case, plans, fidelity),
                         Outcome(bound, ms * max(bound, 1.0)), again)


def row(name: str, value: float, unit: str, *, least: float | None = None,
        most: float | None = None) -> dict[str, object]:
    """A row of ``--json``."""
    ok = (least is None or value >= least) and (most is None or value <= most)
    return {"id": name, "value": value, "unit": unit, "target": most if least is None else least,
            "ok": bool(ok)}


def records(result: Result) -> Iterator[dict[str, object]]:
    """Rows of a case."""
    name, found, bound, again = result
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


def line(result: Result) -> str:
    """One line for people."""
    name, found, bound, again = result

    def cells(what: str) -> str:
        told = [getattr(found[one], what) if one in found else None for one in ROUTINGS]
        return "".join(f"{'':7}" if one is None else f"{one:7.2f}"
                       for one in (*told, getattr(bound, what)))

    told = f"{name:32}" + cells("load") + cells("ms")
    if again is None:
        return told
    times = "".join(f"{one:7.3f}" for one in again[:-1])
    return f"{told}{times}{again.share:9.2f}"


Lab = dict[str, dict[str, float]]
"""What bench/routing/planned_paths.py measures, by what flows do."""


def lab_records(lab: Lab) -> Iterator[dict[str, object]]:
    """Rows of real engines between namespaces."""
    for way, found in lab.items():
        name = f"lab-leaf-spine-8-{way.replace(' ', '-')}"
        kinds = [key[:-2] for key in found if f"{key[:-2]}_most_s" in found]
        for kind in (*kinds, "bound"):
            yield row(f"{name}-{kind}-completion", found[f"{kind}_s"], "s")
        for kind in kinds:
            if f"{kind}_gain" in found:
                yield row(f"{name}-{kind}-gain", found[f"{kind}_gain"], "1", least=LAB_GAIN_TARGET)
                yield row(f"{name}-{kind}-share-of-bound", found[f"{kind}_of_bound"], "1",
                          least=LAB_BOUND_TARGET)


def lab_lines(lab: Lab) -> Iterator[str]:
    """Lines for people."""
    yield "real engines, 8 hosts under 4 spines: completion in s, median (least to most); of bound"
    for way, found in lab.items():
        for kind in (key[:-2] for key in found if f"{key[:-2]}_most_s" in found):
            yield (f"  lab, {way:10} {kind:9}{found[f'{kind}_s']:7.3f} "
                   f"({found[f'{kind}_least_s']:.3f} to {found[f'{kind}_most_s']:.3f})"
                   f"{found['bound_s'] / found[f'{kind}_s']:6.2f}")


def save(path: Path, made: list[Result], lab: Lab) -> None:
    """Put this in the place of what the file has of it."""
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {"simulated": {}, "lab": {}}
    kept["simulated"] |= {one.name: one.told() for one in made}
    kept["lab"] |= lab
    path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


def show(path: Path) -> None:
    """Print what a file has."""
    kept = json.loads(path.read_text("utf-8"))
    click.echo(HEADER)
    for name, told in kept["simulated"].items():
        click.echo(line(Result.of(name, told)))
    if kept["lab"]:
        click.echo("\n".join(("", *lab_lines(kept["lab"]))))


def measure(chosen: Sequence[str], *, quiet: bool) -> tuple[list[Result], Lab]:
    """Run all, and print lines as they come."""
    made: list[Result] = []
    say = (lambda _: None) if quiet else click.echo
    simulated = [one for one in FIDELITIES[:2] if one in chosen]
    if simulated:
        say(HEADER)
    for result in (result for each in simulated for result in results(each)):
        made.append(result)
        say(line(result))
    if "lab" not in chosen:
        return made, {}
    from bench.routing.planned_paths import measure as measure_lab

    lab = measure_lab()
    say("\n".join(lab_lines(lab)))
    return made, lab


@click.command()
@click.option("--fidelity", type=click.Choice(FIDELITIES), multiple=True, help="Default: all.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--save", "kept", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--show", "shown", metavar="FILE", type=click.Path(path_type=Path, exists=True))
def main(fidelity: tuple[str, ...], kept: Path | None, shown: Path | None, *,
         as_json: bool) -> None:
    """Print the table."""
    if shown is not None:
        show(shown)
        return
    made, lab = measure(fidelity or FIDELITIES, quiet=as_json)
    if kept is not None:
        save(kept, made, lab)
    rows = [*(one for result in made for one in records(result)), *lab_records(lab)]
    missed = [one for one in rows if not one["ok"]]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    elif missed:
        click.echo("\nmissed: " + ", ".join(f"{one['id']} {one['value']:.3f} ({one['target']:.3f})"
                                            for one in missed))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
