"""What bench/tccl/tccl_rows.py measured, kept in a file: `--save` puts rows in it, and `--show` prints it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import click
from bench.tccl.features import NONE, Feature
from bench.tccl.judge import Figures, Row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def save(path: Path, rows: Sequence[Row], made: Sequence[Feature],
         fidelities: Sequence[str]) -> None:
    """Put rows and figures in the place of what the file has of them."""
    kept = _read(path) if path.exists() else {"rows": {}, "features": {}}
    for row in rows:
        kept["rows"][f"{row.what}, {row.fidelity}"] = row.to_json()
    for one in made:
        told = kept["features"].setdefault(one.name, {"reference": one.reference, "figures": {}})
        told["figures"] |= dict(zip(fidelities, one.figures, strict=True))
    path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


def load(path: Path, fidelities: Sequence[str]) -> tuple[list[Row], list[Feature]]:
    """Rows and features of a file."""
    kept = _read(path)
    rows = [_row(told) for told in kept["rows"].values()]
    order = list(dict.fromkeys(row.what for row in rows))
    rows.sort(key=lambda row: (order.index(row.what), fidelities.index(row.fidelity)))
    return rows, [Feature(name, told["reference"],
                          tuple(told["figures"].get(one, NONE) for one in fidelities))
                  for name, told in kept["features"].items()]


def _read(path: Path) -> dict[str, Any]:
    """Read what `save` wrote; ClickException, one sentence, if it is something else."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise click.ClickException(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict) or not {"rows", "features"} <= found.keys() or not isinstance(
            found["rows"], dict):
        raise click.ClickException(f"{path} is no file of this table")
    return found


def _row(told: dict[str, Any]) -> Row:
    told = {name: value for name, value in told.items() if name != "good"}
    stacks = {name: None if told[name] is None else Figures(**{
        what: math.inf if value is None else value for what, value in told[name].items()})
        for name in ("harp", "tcp")}
    return Row(**{**told, **stacks})
