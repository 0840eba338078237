"""A host stack's parameter file from a file of measurements."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from harp.cli.io import STDOUT, write_text
from sim.answer.scenario import Settings
from sim.calibration.derive import (
    ASSUMED_SCATTER,
    BOOTSTRAPS,
    COVERED,
    NAMES,
    Derived,
    Equation,
    Figure,
    derive,
)
from sim.calibration.iperf3 import is_iperf3
from sim.calibration.iperf3 import parse_document as iperf3_rows
from sim.calibration.measurements import ceiling_times, parse_measurements
from sim.calibration.nccl_json import is_nccl_tests, read_nccl
from sim.calibration.nccl_log import is_labelled
from sim.cluster.cluster import Cluster
from sim.report.numbers import percent, rounded
from sim.report.quantities import quantity
from sim.report.screen import Column, console_for, grid, show
from sim.schema.input_errors import Problem, TopologyError
from sim.schema.json_text import parse_json
from sim.schema.load import load
from sim.schema.parameters import StackSet, load_set, load_stack
from sim.schema.source import read_input

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from sim.schema.parameters import HostStack

VERSION = 1
MOST_BYTES = 16 << 20
MOST_ROUNDS = 10
"""Times that a log is fitted, each with the equations of the values found before."""
SETTLED = 0.01
"""Relative change of a value below which it is not fitted once more."""
_HEADER = """\
# Made by `python -m sim.calibrate`: measure again rather than edit. To use it, put it, indented,
# under `stacks: {measured: ...}` of a topology file and name that stack in a scenario.
"""


@dataclass(frozen=True)
class Calibration:
    """A stack's parameters as derived from a file."""

    stack: str
    base: HostStack
    derived: Derived
    origin: str
    """The file: its name and the beginning of its SHA-256."""
    what: str
    """The measurement, in a few words."""


def calibrate(stack: str, measurements: Path, topology: Path | None) -> Calibration:
    """Derive parameters of ``stack`` from ``measurements``; raises TopologyError.

    Args:
        stack: the set that supplies what is not derived.
        measurements: a JSON file (ours, nccl-tests' or iperf3's) or a log of nccl-tests.
        topology: the cluster that a log comes from; without it the network counts as free.

    """
    cluster = None if topology is None else Cluster(load(topology))
    base = load_stack(stack) if cluster is None else Settings().stack(cluster.topology, stack)
    file = str(measurements)
    data = read_input(measurements, most_bytes=MOST_BYTES, allowed="a file")
    text = _text(data, file)
    as_json = text.lstrip()[:1] in ("[", "{") and not is_labelled(text)
    document = _document(text, file) if as_json else None
    if document is not None and not is_nccl_tests(document):
        if is_iperf3(document):
            rows = iperf3_rows(document, file, base)
            unused: list[str] = []
        else:
            rows, unused = parse_measurements(document, file, base)
        equations = [row for row in rows if isinstance(row, Equation)]
        what = f"{len(rows)} measurement{'s' if len(rows) > 1 else ''}"
        notes = [f"Not used: {', '.join(dict.fromkeys(unused))}."] if unused else []
        derived = _derived(equations, ceiling_times(rows), base, file)
    else:
        derived, what = _from_log(text, file, base, cluster)
        notes = []
    digest = hashlib.sha256(data).hexdigest()[:12]
    derived = replace(derived, notes=(*notes, *derived.notes))
    return Calibration(stack, base, derived, f"{measurements.name} (sha256 {digest})", what)


def _derived(equations: Sequence[Equation], ceilings: Sequence[float], base: HostStack,
             file: str) -> Derived:
    try:
        return derive(equations, ceilings, base)
    except Problem as problem:
        raise TopologyError(file, problem) from None


def _from_log(text: str, file: str, base: HostStack,
              cluster: Cluster | None) -> tuple[Derived, str]:
    """Derive from a log iteratively, with equations that hold near the last values."""
    from sim.calibration.ring_costs import Ring, bare_cluster, check_ranks

    log = read_nccl(text, file)
    if cluster is None:
        cluster = bare_cluster(log, file)
    check_ranks(cluster, log, file)
    costs = {name: getattr(base, name).value for name in NAMES}
    for _ in range(MOST_ROUNDS):
        ring = Ring(cluster, base.name, costs)
        derived = _derived([ring.equation(row) for row in log.rows], [], base, file)
        before = costs
        costs = costs | {figure.name: figure.value for figure in derived.figures}
        if all(math.isclose(costs[name], before[name], rel_tol=SETTLED) for name in costs):
            break
    return derived, f"{len(log.rows)} times of all_reduce_perf on {log.ranks} ranks"


def _document(text: str, file: str) -> Any:
    """JSON; iperf3 writes some keys once for each of several streams, others' keys stand once."""
    document = parse_json(text, file, foreign=True)
    return document if is_iperf3(document) else parse_json(text, file)


def _text(data: bytes, file: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise TopologyError(file, Problem("is not text", allowed="JSON, or a log of nccl-tests"))
    if not text.strip():
        raise TopologyError(file, Problem("is empty", allowed="JSON, or a log of nccl-tests"))
    return text


def stack_yaml(calibration: Calibration) -> str:
    """Text of the parameter file; what is not derived comes from the base."""
    derived = calibration.derived
    assumed = f" at an assumed scatter of {percent(ASSUMED_SCATTER)}" if derived.few else ""
    source = (f"{calibration.origin}: {calibration.what}, median error "
              f"{percent(derived.scatter, decimals=1)}; interval: {percent(COVERED)} of "
              f"{BOOTSTRAPS} bootstraps{assumed}.")
    document: dict[str, Any] = {
        "base": calibration.stack,
        "description": f"{calibration.stack} as measured, {calibration.origin}",
    }
    for figure in derived.figures:
        document[figure.name] = {key: quantity(figure.name, getattr(figure, key))
                                 for key in ("value", "low", "high")}
        document[figure.name] |= {"confidence": "measured", "source": source}
    return _HEADER + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def write_stack(calibration: Calibration, target: str) -> None:
    """Write the parameter file and load what was written; raises OutputError or TopologyError."""
    text = stack_yaml(calibration)
    StackSet.model_validate(yaml.safe_load(text))
    write_text(target, text)
    if target != STDOUT:
        load_set(Path(target), StackSet)


def print_calibration(calibration: Calibration, console: Console | None = None) -> None:
    """Print a line for each parameter that was derived, and what else there is to know."""
    from rich.text import Text

    console = console_for() if console is None else console
    derived = calibration.derived

    def column(header: str, cells: list[str], **more: Any) -> Column:
        return Column(header, [Text(cell) for cell in cells], **more)

    figures = derived.figures
    show(console, Text(f"{calibration.stack}, {calibration.origin}", style="bold"))
    show(console, grid([
        column("parameter", [f.name for f in figures], align="left"),
        column("base", [quantity(f.name, base_value(calibration, f)) for f in figures]),
        column("measured", [_short(f.name, f.value) for f in figures]),
        column("interval", [f"{_short(f.name, f.low)}..{_short(f.name, f.high)}" for f in figures]),
    ]))
    note = f"From {calibration.what}, median error {percent(derived.scatter, decimals=1)}."
    for line in (note, *derived.notes):
        show(console, Text(line, style="dim"))


def _short(name: str, value: float) -> str:
    return quantity(name, float(f"{value:.3g}"))


def base_value(calibration: Calibration, figure: Figure) -> float:
    """Return the base's value of a derived parameter."""
    return float(getattr(calibration.base, figure.name).value)


def calibration_json(calibration: Calibration) -> dict[str, Any]:
    """Return plain data for ``--json``; docs/use/calibrate.md lists every key."""
    derived = calibration.derived
    return {
        "version": VERSION,
        "stack": calibration.stack,
        "source": calibration.origin,
        "rows": derived.rows,
        "median_error_pct": rounded(derived.scatter * 100),
        "parameters": [{
            "name": figure.name,
            "base": rounded(base_value(calibration, figure)),
            "value": rounded(figure.value),
            "low": rounded(figure.low),
            "high": rounded(figure.high),
        } for figure in derived.figures],
        "notes": list(derived.notes),
    }
