"""The page of ``--html`` in a browser: opened, clicked, keyed, on a phone, in the dark, on paper.

Debian's Chromium runs it without a screen. In every test its console stays empty and it asks
the network for nothing.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from sim.answer.answer import answer
from sim.cluster.cluster import Cluster
from sim.report.html.page import Made, report_html
from sim.schema import load
from tests.support import ROOT
from tests.support.html_pages import LIMIT_S, needs_chromium, open_afresh
from tests.support.levels import long

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

pytestmark = [needs_chromium, long]
TACO = ROOT / "topologies" / "taco-vgg16-v100-25g.yaml"
CHARTS = ("throughput", "parts", "causes", "timeline", "loads", "fabric")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A row that is fitted, without causes, and one with an interval; a path that is long."""
    topology = load(TACO, [f"description={'/folder' * 12}"])
    cluster = Cluster(topology)
    chosen = [one for one in topology.scenarios if one.name in ("Horovod+TCP", "ring+kernel TCP")]
    report = answer(cluster, chosen, record=True, draws=6, why=True)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_html(report, cluster, Made("python -m sim.run", topology.text)))
    return path


@pytest.fixture
def browser(chrome: Chrome, page: Path) -> Iterator[Chrome]:
    """The page, freshly opened; afterwards the console must be empty."""
    open_afresh(chrome, page)
    yield chrome
    assert chrome.get_log("browser") == []


def until(browser: Chrome, script: str) -> Any:
    """Wait until a script gives something true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, LIMIT_S, poll_frequency=0.05).until(
        lambda one: one.execute_script(f"return {script}"))


def text(browser: Chrome, name: str) -> str:
    from selenium.webdriver.common.by import By

    return browser.find_element(By.ID, name).text


def choose(browser: Chrome, name: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element(By.ID, "which")).select_by_visible_text(name)


def requests(browser: Chrome) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [message["params"]["request"]["url"] for message in messages
            if message["method"] == "Network.requestWillBeSent"]


def test_it_opens_with_all_its_charts_and_asks_the_network_for_nothing(browser: Chrome,
                                                                       page: Path) -> None:
    choose(browser, "ring+kernel TCP, 16 GPUs")
    for name in CHARTS:
        shapes = browser.execute_script(
            "return document.querySelectorAll(`#${arguments[0]} svg path`).length", name)
        assert shapes > 3, name
    assert requests(browser) == [page.as_uri()]


def test_a_row_is_chosen_and_one_without_causes_says_so(browser: Chrome) -> None:
    choose(browser, "Horovod+TCP, 16 GPUs")
    assert "No parameter of this row is uncertain" in text(browser, "causes-none")
    choose(browser, "ring+kernel TCP, 16 GPUs")
    assert text(browser, "causes-none") == ""
    browser.execute_script("document.querySelector('#causes-figure details').open = true")
    assert "kernel-tcp.cost_per_byte" in text(browser, "causes-table")


def test_buttons_and_keys_zoom_the_timeline(browser: Chrome) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    choose(browser, "ring+kernel TCP, 16 GPUs")
    whole = text(browser, "window")
    browser.find_element(By.CSS_SELECTOR, "[data-zoom=in]").click()
    inner = text(browser, "window")
    first, last = (float(words) for words in inner.removesuffix(" ms").split(" to "))
    length = float(whole.removesuffix(" ms").split(" to ")[1])
    assert last - first == pytest.approx(length / 2, rel=0.02)
    timeline = browser.find_element(By.ID, "timeline")
    timeline.send_keys(Keys.ARROW_RIGHT)
    later = text(browser, "window")
    assert float(later.split(" to ")[0]) > first
    timeline.send_keys(Keys.HOME)
    assert text(browser, "window") == whole
    timeline.send_keys("+")
    assert text(browser, "window") == inner


def test_a_bar_of_the_timeline_says_what_it_is(browser: Chrome) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    choose(browser, "ring+kernel TCP, 16 GPUs")
    timeline = browser.find_element(By.ID, "timeline")
    browser.execute_script("arguments[0].scrollIntoView()", timeline)
    bars = browser.execute_script("""
      const box = document.getElementById('timeline').getBoundingClientRect();
      const bars = [...document.querySelectorAll('#timeline svg path')]
        .map((path) => path.getBoundingClientRect())
        .filter((one) => one.width > 40 && one.height > 12 && one.height < 30
                && one.top > box.top + 30 && one.bottom < box.bottom - 60);
      return bars.map((one) => [one.x + one.width / 2 - box.x - box.width / 2,
                                one.y + one.height / 2 - box.y - box.height / 2]);""")
    x, y = bars[0]
    ActionChains(browser).move_to_element_with_offset(timeline, int(x), int(y)).perform()
    says = until(browser, "[...document.querySelectorAll('#timeline div')]"
                          ".map((one) => one.innerText).find((one) => / ms \\(/.test(one))")
    assert "gn10xp-0/gpu0" in says


def test_the_fabric_follows_the_time_in_the_step(browser: Chrome) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    choose(browser, "ring+kernel TCP, 16 GPUs")
    assert text(browser, "part-shown") == "mean of the step"
    browser.execute_script("document.querySelector('#fabric-figure details').open = true")
    mean = text(browser, "fabric-table")
    browser.find_element(By.ID, "part").send_keys(Keys.ARROW_RIGHT)
    assert text(browser, "part-shown").startswith("0 to ")
    first = text(browser, "fabric-table")
    assert first != mean
    assert first.splitlines()[-1].endswith(" 0")  # nothing to send yet


def test_the_page_breaks_no_rule_of_accessibility(browser: Chrome) -> None:
    from axe_core_python.selenium import Axe

    browser.execute_script(
        "for (const one of document.querySelectorAll('details')) one.open = true")
    for scheme in ("light", "dark"):
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": scheme}]})
        found = Axe().run(browser)
        assert len(found["passes"]) > 20
        assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []


def test_all_that_can_be_worked_is_reached_by_the_tabulator(browser: Chrome) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    reached = set()
    for _ in range(60):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        reached.add(browser.execute_script(
            "const at = document.activeElement; return at.id || at.dataset.zoom || at.className"))
    assert {"skip", "which", "in", "out", "left", "right", "all", "timeline", "part"} <= reached


def test_it_fits_a_phone_and_follows_the_dark(browser: Chrome) -> None:
    choose(browser, "ring+kernel TCP, 16 GPUs")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True})
    until(browser, "document.querySelector('#parts svg').getBoundingClientRect().width < 360")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    background = "getComputedStyle(document.body).backgroundColor"
    assert browser.execute_script(f"return {background}") == "rgb(255, 255, 255)"
    light = ("[...document.querySelectorAll('#parts svg text')].every((one) => "
             "getComputedStyle(one).fill.match(/\\d+/g).slice(0, 3).every((part) => part > 120))")
    assert not browser.execute_script(f"return {light}")
    bright = "document.querySelector('#loads svg [fill=\"rgb(232,241,248)\"]')"  # idle links' cells
    assert browser.execute_script(f"return {bright}")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
        {"name": "prefers-color-scheme", "value": "dark"}]})
    until(browser, f"{background} === 'rgb(21, 24, 28)'")
    until(browser, light)  # the labels of charts as well
    until(browser, f"!({bright})")


def test_it_prints_with_the_topology_and_without_buttons(browser: Chrome) -> None:
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    opened = browser.execute_script(
        "return [...document.querySelectorAll('details[data-print]')].every((one) => one.open)")
    assert opened
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = browser.execute_script(
        "return [...document.querySelectorAll('.buttons, nav')]"
        ".filter((one) => getComputedStyle(one).display !== 'none').length")
    assert shown == 0


def test_without_scripts_the_tables_are_there(browser: Chrome, page: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page.as_uri())
        assert "ring+kernel TCP" in text(browser, "answer")
        assert text(browser, "row") == ""
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
