"""Pages of tables and charts: what is shown, cut and escaped."""

from __future__ import annotations

import json
import re

from harp.html_page.tables_page import MOST_GIVEN, MOST_ROWS, Given, Part, tables_html
from tests.support.html_pages import Page


def test_names_cannot_end_their_element() -> None:
    evil = "</script><script>alert(1)</script>"
    part = Part(evil, [evil], [[evil]], {"series": [{"name": evil}]}, evil)
    text = tables_html(evil, evil, [part], evil)
    assert "<script>alert" not in text


def data_of(page: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    return found


def test_a_page_has_its_tables_and_the_charts_that_there_are() -> None:
    chart = {"series": [{"data": [1, 2]}]}
    page = tables_html("a title", "", [
        Part("one", ["name", "x"], [["a", "1"], ["b", "2"]]),
        Part("two", ["name"], [["c"]], chart, "It rises.")], "harp x")
    assert Page(page).cells == [["name", "x"], ["a", "1"], ["b", "2"], ["name"], ["c"]]
    assert data_of(page) == {"chart-1": chart}
    assert "It rises." in page
    assert page == tables_html("a title", "", [
        Part("one", ["name", "x"], [["a", "1"], ["b", "2"]]),
        Part("two", ["name"], [["c"]], chart, "It rises.")], "harp x")


def test_a_page_loads_nothing() -> None:
    page = tables_html("a title", "", [Part("one", ["x"], [["1"]], {"series": []})], "harp x")
    loads = {name for _, name, value in Page(page).attributes
             if name in {"src", "href"} and not (value or "").startswith("#")}
    assert loads == set()


def test_long_tables_and_files_are_cut_and_the_page_says_so() -> None:
    rows = [[str(number)] for number in range(MOST_ROWS + 1)]
    whole, cut = (tables_html("t", "", [Part("p", ["n"], some)], "c", Given("f.yaml", content))
                  for some, content in ((rows[:-1], "x" * MOST_GIVEN),
                                        (rows, "x" * (MOST_GIVEN + 1))))
    assert [len(Page(page).cells) for page in (whole, cut)] == [MOST_ROWS + 1] * 2
    assert "<p>The first" not in whole
    assert "The first 2,000 of 2,001 rows." in cut
    assert "The first 200,000 of 200,001 characters." in cut
