"""``sim.sweep --html``: the lines and the front of a sweep, in a browser too."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import yaml
from click.testing import CliRunner

from sim.report.html.page import MOST_BYTES
from sim.sweep import main
from tests.support.cluster_files import topology, write
from tests.support.html_pages import Page, check_chart, needs_chromium
from tests.support.levels import long

if TYPE_CHECKING:
    from pathlib import Path

    from selenium.webdriver import Chrome

RATES = ["10Gbps", "25Gbps", "100Gbps"]


def swept(folder: Path, *options: str, **keys: Any) -> str:
    """Text of the page of a sweep over rates and batches."""
    write(folder, topology())
    (folder / "sweep.yaml").write_text(yaml.safe_dump({
        "topology": "t.yaml", "grid": {"hosts[0].nics[0].rate": RATES, "workload.batch": [32, 64]},
        **keys}))
    done = CliRunner().invoke(main, [str(folder / "sweep.yaml"), "-o", str(folder / "a.csv"),
                                     "--html", str(folder / "a.html"), "--workers", "1", *options])
    assert done.exit_code == 0, done.output
    return (folder / "a.html").read_text()


AIMS = {"images_per_s": "max", "hosts[0].nics[0].rate": "min"}


def chart(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(re.search(
        r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    return found["chart-0"]


def test_the_page_has_all_lines_and_the_front(tmp_path: Path) -> None:
    text = swept(tmp_path, objectives=AIMS)
    assert len(text.encode()) < MOST_BYTES
    cells = Page(text).cells
    heads = [number for number, row in enumerate(cells) if row[0] == "hosts[0].nics[0].rate"]
    assert len(heads) == 2
    every = cells[heads[1] + 1:]
    assert [row[0] for row in every] == [rate for rate in RATES for _ in (32, 64)]
    # A faster NIC costs nothing but the rate itself: of each rate the better batch is on the front.
    assert [row[0] for row in cells[heads[0] + 1:heads[1]]] == RATES
    front = chart(text)["series"][-1]
    assert front["name"] == "Pareto front"
    assert len(front["data"]) == 3


def test_without_two_objectives_there_is_a_table_and_no_chart(tmp_path: Path) -> None:
    text = swept(tmp_path)
    assert 'id="chart-0"' not in text
    assert "All points" in text


def test_a_wrong_name_is_refused_before_anything_runs(tmp_path: Path) -> None:
    write(tmp_path, topology())
    (tmp_path / "sweep.yaml").write_text("{topology: t.yaml, grid: {seed: [1]}}")
    done = CliRunner().invoke(main, [str(tmp_path / "sweep.yaml"), "-o", str(tmp_path / "a.csv"),
                                     "--html", str(tmp_path / "a.txt")])
    assert done.exit_code == 2
    assert not (tmp_path / "a.csv").exists()


@long
@needs_chromium
def test_a_browser_draws_the_front_and_says_nothing(tmp_path: Path, chrome: Chrome) -> None:
    swept(tmp_path, objectives=AIMS)
    check_chart(chrome, tmp_path / "a.html")


def test_the_command_that_made_the_page_is_whole(tmp_path: Path) -> None:
    page = swept(tmp_path, "--cache", str(tmp_path / "kept"), "--plot", str(tmp_path / "p.png"),
                 objectives=AIMS)
    for words in ("--workers 1", f"--cache {tmp_path / 'kept'}", f"--plot {tmp_path / 'p.png'}",
                  f"-o {tmp_path / 'a.csv'}"):
        assert words in page


def test_an_objective_without_a_value_is_named(tmp_path: Path) -> None:
    """The topology file has no prices."""
    page = swept(tmp_path, objectives={"images_per_s": "max", "cost_step": "min"})
    assert "There is no Pareto front, since no line has cost_step." in page
    assert "chart-0" not in page
    done = CliRunner().invoke(main, [str(tmp_path / "sweep.yaml"), "-o", str(tmp_path / "b.csv")])
    assert "No Pareto front: no line has cost_step" in done.stdout
