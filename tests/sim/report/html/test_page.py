"""The page of ``--html``: whole, small, the same bytes each time, safe whatever its names are."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from harp.html_page.html_elements import FOLDER
from sim.cluster.cluster import Cluster
from sim.records.results import Cost, Report, Span
from sim.report.html.page import MOST_BYTES, Made, report_html
from sim.report.html.page_data import MOST_BARS
from sim.run import main
from sim.schema import load
from tests.support import ROOT
from tests.support.cluster_files import topology, write
from tests.support.html_pages import Page
from tests.support.levels import long
from tests.support.report_samples import cell, taco, two_jobs

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
"""SHA-256 of echarts.min.js of the npm package echarts 6.1.0."""
TACO = ROOT / "topologies" / "taco-vgg16-v100-25g.yaml"
MADE = Made("python -m sim.run x.yaml --html x.html", "name: x\n")


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster(load(TACO))


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def own_parts(text: str) -> str:
    """The page without the library and the licences, which name addresses."""
    library = (FOLDER / "echarts" / "echarts.min.js").read_text()
    assert library in text
    return re.sub(r"<!--.*?-->", "", text.replace(library, ""), flags=re.DOTALL)


def test_the_page_says_what_the_report_says(cluster: Cluster) -> None:
    report = taco()
    page = Page(report_html(report, cluster, MADE))
    first = page.cells[1:1 + len(report.scenarios)]
    for cells, row in zip(first, report.scenarios, strict=True):
        assert cells[0] == row.name
        assert cells[1] == str(row.gpus)
        assert f"{row.images_per_s:.0f}" in cells
    data = data_of(report_html(report, cluster, MADE))
    for shown, row in zip(data["rows"], report.scenarios, strict=True):
        assert sum(shown["parts"]) == pytest.approx(row.step_s * 1e3, rel=1e-6)
        assert shown["rate"] == pytest.approx(row.images_per_s)
    causes = {one["label"]: one["causes"] for one in data["details"]}
    assert causes["LightCC+HARP, 16 GPUs"][0][:4] == ["horovod.overlap", "0.1 to 0.9",
                                                      pytest.approx(0.97 * 3478),
                                                      pytest.approx(1.04 * 3478)]


@pytest.mark.parametrize(("tokens_per_s", "unit"), [(None, "Images/s"), (1e6, "Samples/s")])
def test_captions_name_the_unit_of_the_rows(cluster: Cluster, tokens_per_s: float | None,
                                            unit: str) -> None:
    report = taco()
    rows = [replace(row, tokens_per_s=tokens_per_s) for row in report.scenarios]
    text = report_html(replace(report, scenarios=rows), cluster, MADE)
    assert [name for name in ("Images/s", "Samples/s")
            if f"<caption>{name} and what limits them" in text
            and f"<figcaption>{name} of each row" in text] == [unit]


def test_costs_are_there_where_the_file_has_prices(cluster: Cluster) -> None:
    paid = replace(cell("paid", 16, 1000, None, ""), cost=Cost("EUR", 10.0))
    page = Page(report_html(Report("t", 1, (paid,)), cluster, MADE))
    (costs,) = [cells for cells in page.cells if cells[0] == "paid" and "240" in cells]
    assert "EUR a day" in page.cells[page.cells.index(costs) - 1]
    free = Report("t", 1, (replace(paid, cost=None),))
    assert "What the hosts of each row cost" not in report_html(free, cluster, MADE)


def test_the_page_loads_nothing_and_is_small(cluster: Cluster) -> None:
    text = report_html(taco(), cluster, MADE)
    assert len(text.encode()) <= MOST_BYTES
    page = Page(text)
    assert "link" not in page.tags
    assert "img" not in page.tags
    linked = [value for _, name, value in page.attributes if name in ("src", "href", "action")]
    assert all(value and value.startswith("#") for value in linked)
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|//cdn|@import|url\(|fetch\(|XMLHttp", own_parts(text))


def test_equal_reports_give_equal_bytes(cluster: Cluster) -> None:
    assert report_html(taco(), cluster, MADE) == report_html(taco(), cluster, MADE)


@pytest.mark.parametrize("words", [
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "a & b \"c\" 'd'",
    "<!--", "]]>", "\u2028", "$title ${data} $$"])
def test_names_are_text_wherever_they_stand(cluster: Cluster, words: str) -> None:
    row = cell(words, 16, 1000, 1010, "measured")
    span = Span(f"{words}/gpu0", words, "forward", 0.0, 0.1)
    report = Report(words, 1, (replace(row, spans=(span,), notes=(words,)),), (words,))
    text = report_html(report, cluster, Made(words, words))
    plain = Page(report_html(taco(), cluster, MADE))
    page = Page(text)
    assert page.tags.count("script") == plain.tags.count("script") == 3
    assert "img" not in page.tags
    assert page.cells[1][0] == words
    assert data_of(text)["rows"][0]["label"] == words


def test_a_row_without_an_end_and_a_report_without_rows_have_pages(cluster: Cluster) -> None:
    endless = replace(cell("x", 16, 1000, None, ""), images_per_s=0.0, step_s=float("inf"))
    for report in (Report("t", 1, (endless,)), Report("t", 1, ()), two_jobs()):
        text = report_html(report, cluster, MADE)
        assert data_of(text)["rows"] == [] or report.scenarios
    assert "✗" in report_html(two_jobs(), cluster, MADE)


@long
def test_a_huge_report_still_fits(cluster: Cluster) -> None:
    spans = tuple(Span(f"h-{track}/gpu0/stream{track}", f"name {number} of {track}", "transfer",
                       number * 1e-3 + track * 1e-7, number * 1e-3 + 9e-4)
                  for track in range(20) for number in range(2000))
    rows = tuple(replace(cell(f"row {number}", 16, 1000.0 + number, None, ""), spans=spans)
                 for number in range(60))
    text = report_html(Report("huge", 1, rows), cluster, Made("x", "# long\n" * 500_000))
    assert len(text.encode()) <= MOST_BYTES
    assert len(Page(text).cells) >= 60
    bars = [len(one["timeline"]["bars"]) for one in data_of(text)["details"]]
    assert 0 < sum(bars) <= MOST_BARS


def test_the_library_is_the_published_file_and_its_licences_are_kept() -> None:
    folder = FOLDER / "echarts"
    assert hashlib.sha256((folder / "echarts.min.js").read_bytes()).hexdigest() == LIBRARY
    text = report_html(taco(), Cluster(load(TACO)), MADE)
    for words in ("Apache License", "Copyright 2017-2026 The Apache Software Foundation",
                  "Copyright (c) 2017, Baidu Inc.", "Neither the name of the copyright holder"):
        assert words in text


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@long
def test_the_command_writes_it_with_causes_and_the_file_as_given(tmp_path: Path) -> None:
    path, page = write(tmp_path, topology(gpus=2)), tmp_path / "out.html"
    path.write_text(path.read_text() + "# <the end> & more\n")
    done = run(path, "--set", "workload.batch=64", "--scenario", "s", "--html", page, "--quiet")
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "# &lt;the end&gt; &amp; more" in text
    command = f"python -m sim.run {path} --set workload.batch=64 --scenario s --html {page}"
    assert f"<pre><code>{command}</code></pre>" in text
    assert hashlib.sha256(path.read_bytes()).hexdigest() in text
    (row,) = data_of(text)["details"]
    assert row["timeline"]["tracks"][0] == "h-0/gpu0"
    assert row["cables"]
    assert len(data_of(text)["fabric"]["nodes"]) == 3


@pytest.mark.parametrize(("options", "says"), [
    (["--html", "x.pdf"], "must end in one of .htm, .html"),
    (["--html", "-"], "needs a file name"),
    (["--html", "no/x.html"], "there is no directory")])
def test_wrong_options_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        options: list[str], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(write(tmp_path, topology()), *options)
    assert done.exit_code == 2
    assert says in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.yaml"]
