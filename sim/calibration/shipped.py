"""Comparison of the shipped values with those fitted to published rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.answer.fit import find_row, fit, present_value
from sim.answer.scenario import Settings
from sim.cluster.cluster import Cluster
from sim.report.numbers import percent, rate, rounded
from sim.report.quantities import quantity
from sim.report.screen import Column, console_for, grid, show
from sim.schema.input_errors import Problem
from sim.schema.load import load

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from sim.schema.scenario_keys import Expect

VERSION = 1
TOLERANCE = 0.005
"""A shipped value further than this from the fit is stale."""


@dataclass(frozen=True)
class Comparison:
    """One fitted parameter: its shipped value, its fitted value, and the row of the fit."""

    parameter: str
    shipped: float
    fitted: float
    expect: Expect
    residual: float
    """Relative error of the row's images/s once everything is fitted."""

    @property
    def difference(self) -> float:
        """Relative difference of the shipped value from the fitted one."""
        if self.fitted == 0.0:
            return 0.0 if self.shipped == 0.0 else math.inf
        return self.shipped / self.fitted - 1.0

    @property
    def stale(self) -> bool:
        """Whether the shipped value is further from the fit than `TOLERANCE`."""
        return not abs(self.difference) <= TOLERANCE

    @property
    def row(self) -> str:
        """Name of the row in a sentence."""
        return f"{self.expect.scenario}, {self.expect.gpus} GPU{'s'[:self.expect.gpus - 1]}"


def compare_file(path: Path) -> tuple[Cluster, list[Comparison]]:
    """Build the cluster of a topology file and `compare`; raises TopologyError."""
    cluster = Cluster(load(path))
    return cluster, compare(cluster)


def compare(cluster: Cluster) -> list[Comparison]:
    """Fit everything that the file's rows name, and compare; raises TopologyError."""
    topology = cluster.topology
    if topology.is_elsewhere:
        raise topology.error(Problem(
            f"{topology.fitted_on} is not this cluster and workload", path=("fitted_on",),
            found=topology.fitted_on, allowed=f"{topology.fingerprint}, if the figures under "
            "expect come from what this file says"))
    fitted = fit(cluster, Settings())
    if not fitted:
        raise topology.error(Problem(
            "no row names a parameter to fit", path=("expect",),
            allowed="fits: kernel-tcp.cost_per_byte, or another parameter, beside a figure"))
    settings = Settings(fitted)
    return [Comparison(expect.fits, present_value(cluster, expect.fits), fitted[expect.fits],
                       expect, _residual(cluster, expect, settings))
            for expect in cluster.topology.expect if expect.fits is not None]


def _residual(cluster: Cluster, expect: Expect, settings: Settings) -> float:
    return find_row(cluster, expect, settings).images_per_s / expect.images_per_s - 1.0


def verdict(comparisons: list[Comparison]) -> str:
    """One sentence on whether the shipped values agree with the fit."""
    stale = [comparison.parameter for comparison in comparisons if comparison.stale]
    limit = percent(TOLERANCE, decimals=1)
    if not stale:
        return f"Every shipped value is within {limit} of its fit."
    verb = "is" if len(stale) == 1 else "are"
    return (f"Stale: {', '.join(stale)} {verb} more than {limit} off the fit; put the fitted "
            "values into the files.")


def print_comparisons(comparisons: list[Comparison], console: Console | None = None) -> None:
    """Print one line a parameter and that all is well, if it is."""
    from rich.text import Text

    console = console_for() if console is None else console
    styles = ["bold red" if comparison.stale else "" for comparison in comparisons]

    def texts(cells: list[str], style: list[str] | None = None) -> list[Text]:
        return [Text(cell, style=s) for cell, s in zip(cells, style or [""] * len(cells),
                                                       strict=True)]

    show(console, grid([
        Column("parameter", texts([c.parameter for c in comparisons]), align="left"),
        Column("shipped", texts([quantity(c.parameter, c.shipped) for c in comparisons])),
        Column("fitted", texts([quantity(c.parameter, c.fitted) for c in comparisons])),
        Column("difference", texts([percent(c.difference, sign=True, decimals=2)
                                    for c in comparisons], styles)),
        Column("row", texts([c.row for c in comparisons]), align="left"),
        Column("images/s", texts([rate(c.expect.images_per_s) for c in comparisons])),
        Column("residual", texts([percent(c.residual, sign=True, decimals=2)
                                  for c in comparisons])),
    ]))
    if not any(styles):
        show(console, Text(verdict(comparisons), style="dim"))


def comparisons_json(cluster: Cluster, comparisons: list[Comparison]) -> dict[str, Any]:
    """Return plain data for ``--json``; docs/use/calibrate.md lists every key."""
    return {
        "version": VERSION,
        "topology": cluster.topology.name,
        "tolerance": TOLERANCE,
        "stale": any(comparison.stale for comparison in comparisons),
        "parameters": [{
            "name": c.parameter,
            "shipped": rounded(c.shipped),
            "fitted": rounded(c.fitted),
            "difference_pct": rounded(c.difference * 100),
            "scenario": c.expect.scenario,
            "gpus": c.expect.gpus,
            "images_per_s": rounded(c.expect.images_per_s),
            "residual_pct": rounded(c.residual * 100),
            "stale": c.stale,
        } for c in comparisons],
    }
