"""Panels of the picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.report.panels import LINES, MOST_LINES, busiest
from tests.sim.report.test_plot import panels
from tests.support.report_samples import taco, two_jobs


def test_scaling_shows_published_points_and_the_ideal() -> None:
    few = replace(taco(), scenarios=taco().scenarios[:9])
    lines = {line.get_label(): line for line in panels(few)["Scaling"].get_lines()}
    assert sorted(zip(*lines["published"].get_data(), strict=True)) == [
        (1, 251), (8, 1977), (16, 847), (16, 1644), (16, 3562)]
    assert list(lines["ideal"].get_ydata()) == pytest.approx([251, 251 * 16])  # type: ignore[arg-type]
    assert list(lines["Horovod+TCP"].get_xdata()) == [1, 8, 16]  # type: ignore[arg-type]


def test_one_number_of_gpus_gives_bars() -> None:
    bars = panels(two_jobs())["Throughput"].patches
    assert [bar.get_width() for bar in bars] == [1000, 700, 990]  # type: ignore[attr-defined]


def test_more_scenarios_than_colours_give_bars_with_their_names() -> None:
    report = taco()
    axes = panels(report)["Throughput"]
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert len(names) == len(set(names)) == len(report.scenarios)
    widths = [bar.get_width() for bar in axes.patches if bar.get_x() == 0]  # type: ignore[attr-defined]
    assert widths == [row.images_per_s for row in report.scenarios]


def test_lines_of_one_panel_differ_in_colour_and_marker() -> None:
    assert len({colour for colour, _ in LINES}) == len({mark for _, mark in LINES}) == MOST_LINES


def test_equal_curves_are_shown_once() -> None:
    row = next(row for row in taco().scenarios if row.links is not None)
    assert row.links is not None
    twins = replace(row.links, share=np.repeat(row.links.share[:1], 8, axis=0))
    assert len(busiest([replace(row, links=twins)])) == 1
