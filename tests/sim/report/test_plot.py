"""The picture, opened again: right kind, right size, not blank, and showing what it should."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import matplotlib as mpl
import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from sim.records.results import Report
from sim.report.panels import KIND_COLOURS
from sim.report.plot import figure, report_plot, timelines
from tests.support.levels import long_except
from tests.support.report_samples import taco, two_jobs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray


@pytest.fixture(scope="module")
def picture() -> NDArray[np.float64]:
    return np.asarray(matplotlib.image.imread(io.BytesIO(report_plot(taco(), "a.png"))))[..., :3]


def panels(report: Report) -> dict[str, Axes]:
    drawing = figure(report)
    drawing.draw_without_rendering()
    return {axes.get_title(loc="left").split(":")[0].split(" ")[0]: axes for axes in drawing.axes}


def test_png_is_large_and_not_blank(picture: NDArray[np.float64]) -> None:
    height, width, _ = picture.shape
    assert width == 1650
    assert height > 1200
    assert 0.05 < np.mean(np.any(picture < 0.98, axis=-1)) < 0.7


@pytest.mark.parametrize("kind", ["forward", "backward", "selection", "transfer"])
def test_png_shows_every_kind_of_work(picture: NDArray[np.float64], kind: str) -> None:
    colour = np.array(to_rgb(KIND_COLOURS[kind]))  # type: ignore[index]
    assert np.sum(np.all(np.abs(picture - colour) < 0.02, axis=-1)) > 500


def test_panels_over_time_share_their_axis() -> None:
    shown = panels(taco())
    assert list(shown) == ["One", "Utilisation", "Throughput", "Causes"]
    assert shown["One"].get_xlim() == shown["Utilisation"].get_xlim()
    left, right = (shown[name].get_window_extent() for name in ("One", "Utilisation"))
    assert (left.x0, left.x1) == pytest.approx((right.x0, right.x1))


@pytest.mark.parametrize("report", [taco(), two_jobs()])
def test_labels_do_not_overlap_and_stay_inside(report: Report) -> None:
    drawing = figure(report)
    drawing.draw_without_rendering()
    page = drawing.bbox
    for axes in drawing.axes:
        boxes = [text.get_window_extent() for text in
                 [*axes.get_yticklabels(), *axes.texts, *axes.get_xticklabels()] if text.get_text()
                 and page.y0 <= text.get_window_extent().y0]
        for i, box in enumerate(boxes):
            assert box.x0 >= page.x0
            assert not any(box.overlaps(other) for other in boxes[i + 1:])


def test_many_rows_keep_the_largest_run_of_each_scenario() -> None:
    assert {row.gpus for row in timelines(taco().scenarios)} == {16}
    assert len(timelines(taco().scenarios[:9])) == 9


def test_titles_say_how_many_rows_are_left_out() -> None:
    def titles(report: Report) -> list[str]:
        return [axes.get_title(loc="left") for axes in figure(report).axes]

    report = taco()
    total = sum(bool(row.spans) for row in report.scenarios)
    left_out = [title for title in titles(report) if f"of {total} rows; see --scenario" in title]
    assert [title.split()[0] for title in left_out] == ["One", "Utilisation"]
    assert f"({len(timelines(report.scenarios))} of " in left_out[0]
    few = titles(replace(report, scenarios=report.scenarios[:9]))
    assert not any("--scenario" in title for title in few)


@pytest.mark.parametrize(("suffix", "start"), long_except(
    [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")],
    (".PNG", b"\x89PNG")))
def test_suffix_chooses_the_format_and_bytes_repeat(suffix: str, start: bytes) -> None:
    report = two_jobs()
    first = report_plot(report, f"a{suffix}")
    assert first.startswith(start)
    assert report_plot(report, f"a{suffix}") == first


@pytest.mark.parametrize("report", [
    Report("nothing at all", 1, ()),
    Report("no timeline", 1, (replace(taco().scenarios[0], spans=(), links=None),)),
    Report("$\\frac{$ 中文 [x]", 1, (replace(taco().scenarios[0], name="$a_b", job="$"),)),
    Report("stuck", 1, (replace(taco().scenarios[0], step_s=float("inf"), images_per_s=0.0),)),
])
def test_odd_reports_are_drawn_too(report: Report) -> None:
    assert report_plot(report, "a.png").startswith(b"\x89PNG")


def test_matplotlib_is_left_as_it_was() -> None:
    before = dict(mpl.rcParams)
    report_plot(two_jobs(), "a.svg")
    assert dict(mpl.rcParams) == before
