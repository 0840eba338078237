"""The page of measurements."""

import json
import re

import pytest

from tests.harp.cli.perf.measured import QUICK, rows, run
from tests.support.html_pages import Page, check_chart, needs_chromium
from tests.support.levels import long


def test_rows_become_a_page(tmp_path):
    page = tmp_path / "p.html"
    beside = ("--port", "mem", "--tcp", "1")
    found = rows(run("--local", "--json", *beside, "--html", str(page), *QUICK))
    text = page.read_text()
    cells = Page(text).cells
    assert [row[0] for row in cells[1:1 + len(found)]] == [str(row["size"]) for row in found]
    chart = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])["chart-0"]
    assert [series["name"] for series in chart["series"]] == ["HARP", "kernel TCP"]
    assert chart["series"][0]["data"] == [
        [row["size"], pytest.approx(row["algbw_gbytes"])] for row in found if row["size"]]


@long
@needs_chromium
def test_a_browser_draws_the_rows(tmp_path, chrome):
    rows(run("--local", "--json", "--port", "mem", "--html", str(tmp_path / "p.html"), *QUICK))
    check_chart(chrome, tmp_path / "p.html")
