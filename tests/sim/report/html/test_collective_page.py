"""The page of ``--collective --html``: its figures, and how a browser shows it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sim.report.html.collective_page import collective_html
from sim.report.html.page import MOST_BYTES, Made
from sim.run import main
from tests.support.cluster_files import topology, write
from tests.support.html_pages import LIMIT_S, Page, needs_chromium, open_afresh
from tests.support.levels import long
from tests.support.report_samples import collective

if TYPE_CHECKING:
    from pathlib import Path

    from selenium.webdriver import Chrome

MADE = Made("python -m sim.run x.yaml --collective allreduce --html x.html", "name: x\n# <end>\n")


def charts(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    made: dict[str, Any] = json.loads(found[1])
    return made


def test_tables_and_charts_say_what_the_report_says() -> None:
    report = collective()
    text = collective_html(report, "rdma", "A cluster.", MADE)
    assert text == collective_html(report, "rdma", "A cluster.", MADE)
    assert len(text.encode()) < MOST_BYTES
    cells = Page(text).cells
    busbw, time = cells[:11], cells[11:22]
    assert busbw[0] == ["size (B)", "count (float)", *(
        f"{name}{end}" for name in ("ring", "tree", "2d") for end in ("", " P10", " P50", " P90"))]
    by_size = {row.size_bytes: row for row in report.rows if row.algorithm == "2d"}
    for line, row in zip(time[1:], by_size.values(), strict=True):
        assert float(line[10].lstrip("*")) == pytest.approx(row.time_s * 1e6, rel=0.01)
        assert float(line[11]) == pytest.approx(0.8 * row.time_s * 1e6, rel=0.01)
        assert float(line[13]) == pytest.approx(1.3 * row.time_s * 1e6, rel=0.01)
    assert [line[6][0] for line in busbw[1:3]] == ["*", "*"]  # the tree is fastest for small ones
    assert busbw[10][10][0] == "*"
    rates, times = (charts(text)[f"chart-{number}"] for number in (0, 1))
    line, low, width = (one["data"] for one in rates["series"] if one["name"] == "2d")
    for place, row in enumerate(by_size.values()):
        assert line[place] == pytest.approx(row.busbw / 1e9, rel=1e-3)
        assert low[place] + width[place] == pytest.approx(row.busbw / 1e9 / 0.8, rel=2e-3)
    assert [one["name"] for one in times["series"]] == ["ring", "tree", "2d"]
    assert times["yAxis"]["type"] == "log"
    assert times["xAxis"]["data"][:3] == ["8 B", "64 B", "512 B"]


def test_the_command_writes_it_with_the_file_as_given(tmp_path: Path) -> None:
    path, page = write(tmp_path, topology(gpus=2)), tmp_path / "c.html"
    path.write_text(path.read_text() + "# <the end> & more\n")
    options = ["--set", "seed=3", "--collective", "broadcast", "--sizes", "1KiB:1MiB:32",
               "--stack", "kernel-tcp", "--explain", "--draws", "6"]
    done = CliRunner().invoke(main, [str(path), *options, "--html", str(page), "--quiet"])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "# &lt;the end&gt; &amp; more" in text
    assert ": broadcast, 4 ranks over kernel-tcp</h1>" in text
    said = re.search(r"<pre><code>(python .*?)</code></pre>", text)
    assert said is not None
    assert sorted(said[1].split()) == sorted(
        ["python", "-m", "sim.run", str(path), *options, "--html", str(page)])
    for title in ("What decides the answer", "Where the time goes", "Parameters"):
        assert title in text
    again = CliRunner().invoke(main, said[1].split()[3:])
    assert again.exit_code == 0
    assert page.read_text() == text


def test_without_draws_there_are_no_intervals_and_no_causes(tmp_path: Path) -> None:
    page = tmp_path / "c.html"
    done = CliRunner().invoke(main, [
        str(write(tmp_path, topology())), "--collective", "alltoall", "--sizes", "1MiB", "--draws",
        "0", "--html", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "P10" not in text.split("<script")[0]
    assert "What decides" not in text


@long
@needs_chromium
def test_a_browser_draws_it_on_a_screen_a_phone_and_in_the_dark(chrome: Chrome,
                                                                tmp_path: Path) -> None:
    from axe_core_python.selenium import Axe
    from selenium.webdriver.support.ui import WebDriverWait

    page = tmp_path / "c.html"
    page.write_text(collective_html(collective(), "rdma", "A cluster.", MADE))
    open_afresh(chrome, page)
    asked = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    assert [one["params"]["request"]["url"] for one in asked
            if one["method"] == "Network.requestWillBeSent"] == [page.as_uri()]
    for number in range(3):
        assert len(chrome.find_elements("css selector", f"#chart-{number} svg path")) > 6
    shapes = "return document.querySelectorAll('#chart-0 svg path').length"
    before = chrome.execute_script(shapes)
    chrome.execute_script("echarts.getInstanceByDom(document.getElementById('chart-0'))"
                          ".dispatchAction({type: 'legendUnSelect', name: '2d'})")
    # The curve goes with its band, and each of its ten points.
    WebDriverWait(chrome, LIMIT_S).until(
        lambda one: one.execute_script(shapes) <= before - 12)
    for scheme, background in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(21, 24, 28)")):
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": scheme}]})
        assert chrome.execute_script(
            "return getComputedStyle(document.body).backgroundColor") == background
        assert [(one["id"], one["nodes"][0]["html"]) for one in Axe().run(chrome)[
            "violations"]] == []
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True})
    WebDriverWait(chrome, LIMIT_S).until(lambda one: one.execute_script(
        "return document.querySelector('#chart-0 svg').getBoundingClientRect().width < 360"))
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= 360
    chrome.execute_cdp_cmd("Page.printToPDF", {})
    assert chrome.execute_script("return document.querySelector('#given details').open")
    chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert chrome.get_log("browser") == []
