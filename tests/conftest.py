"""Rules for every test."""

from __future__ import annotations

import gc
import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support import levels

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from selenium.webdriver import Chrome

# A shell's background jobs ignore Ctrl-C, and so would all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Draw the same examples in every run, however slow the machine is.

    So a change is judged by what it does and not by luck.
    """
    levels.set_level(config)
    settings.register_profile("same-examples", derandomize=True, deadline=None,
                              max_examples=levels.draws(100),
                              suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("same-examples")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --long-part: CI has no time for all long tests, and runs a part of them."""
    parser.addoption("--long-part", metavar="K/N", default="0/1", help=(
        "of the long tests run those of the K-th of every N files, K from 0 (default: all)"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what is imported and collected: it stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long tests of other parts. A file is in one part: its tests share what it makes."""
    given = config.getoption("--long-part")
    match = re.fullmatch(r"(\d+)/(\d+)", given)
    if match is None or int(match[1]) >= int(match[2]):
        raise pytest.UsageError(f"--long-part is {given!r}; it must be K/N with K from 0 to N - 1")
    part, parts = int(match[1]), int(match[2])
    long = [item for item in items if item.get_closest_marker("long")]
    files = sorted({item.path for item in long})
    left_out = [item for item in long if files.index(item.path) % parts != part]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def pytest_runtest_teardown() -> None:
    """End ranks that a failed test did not wait for.

    They would compute beside the tests behind it, and their open pipes, which are warnings, would
    make one of these fail.
    """
    if ranks := sys.modules.get("tests.support.torch_ranks"):
        for rank in tuple(ranks.under_way):
            rank.leave()


@pytest.fixture(scope="session", autouse=True)
def _surroundings() -> Iterator[None]:
    """Give tables the width that the manual's have, and leave the user's file of settings alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "120")
        patch.delenv("HARP_CONF_FILE", raising=False)
        yield


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Give a browser to tests that are marked by `tests.support.html_pages.needs_chromium`."""
    from tests.support.html_pages import open_chrome

    driver = open_chrome(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name raw bytes by their length: xdist refuses tests whose names differ between workers.

    What a test compresses or packs may hold the time at which the worker was started.
    """
    return f"{len(val)}_bytes" if isinstance(val, bytes) else None
