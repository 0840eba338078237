"""Readers of pages for tests, and the browser that opens them: Debian's Chromium, no screen."""

from __future__ import annotations

import shutil
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from selenium.webdriver import Chrome

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(CHROMIUM is None or DRIVER is None,
                                    reason="needs chromium and chromium-driver")
LIMIT_S = 60


class Page(HTMLParser):
    """Elements, texts of table cells, and all attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.cells: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1][-1] += data


def open_chrome(profile: Path) -> Chrome:
    """Start a browser whose console and requests are logged; its profile lies in a folder.

    It looks up no host's name: each look-up binds a random UDP port on all addresses, at times
    one that another test has just found free.
    """
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",
                 f"--user-data-dir={profile}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(LIMIT_S)
    return driver


def open_afresh(chrome: Chrome, page: Path) -> None:
    """Open a page on a light screen of 1200 pixels, with nothing in the browser's logs."""
    for command, what in (("Emulation.clearDeviceMetricsOverride", {}),
                          ("Emulation.setEmulatedMedia", {"features": []})):
        chrome.execute_cdp_cmd(command, what)
    chrome.set_window_size(1200, 900)
    chrome.get_log("browser")
    chrome.get_log("performance")
    chrome.get(page.as_uri())


def check_chart(chrome: Chrome, page: Path) -> None:
    """Open a page: its first chart is drawn, and the console has no error."""
    chrome.get_log("browser")
    chrome.get(page.as_uri())
    assert chrome.find_elements("css selector", "#chart-0 svg path")
    assert [entry for entry in chrome.get_log("browser") if entry["level"] == "SEVERE"] == []
