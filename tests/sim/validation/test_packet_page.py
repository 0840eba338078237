"""``sim.validate packet``: the packet network against closed forms and others' results."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sim.network.packet.reference_cases import path_rows, published_rows
from sim.records.reference_rows import Row
from sim.validate import main
from sim.validation.closed_forms import collective_rows
from sim.validation.packet_page import unexplained, write_tables
from tests.support import ROOT
from tests.support.levels import long

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "results" / "packet-published.md"
OURS = re.compile(r"^(\| .* \| .* \| .* )\| [^|]* \| [^|]* (\| .* \| .*\|)$", re.M)
"""A line of a table: what the packet network gives, and its deviation, stand between the groups."""
DATED = re.compile(r"^Figures of .*\n", re.M)


@pytest.fixture(scope="module")
def forms() -> list[Row]:
    return [*path_rows(), *collective_rows()]


@pytest.fixture(scope="module")
def published() -> list[Row]:
    return published_rows()


@long
def test_no_row_is_off_without_a_reason(forms: list[Row], published: list[Row]) -> None:
    assert not unexplained([*forms, *published])


@long
def test_throughputs_are_within_five_per_cent(published: list[Row]) -> None:
    rates = [row for row in published if row.unit == "Mb/s"]
    assert len(rates) == 7
    assert max(abs(row.error) for row in rates) < 0.05


@long
def test_empty_paths_take_what_their_links_take(forms: list[Row]) -> None:
    few = [row for row in forms if "frame" in row.case and "three links" in row.case]
    assert len(few) == 4
    assert max(abs(row.error) for row in few) < 0.001


@long
def test_times_are_within_five_per_cent(forms: list[Row]) -> None:
    times = [row for row in forms if row.unit == "us"]
    assert len(times) >= 30
    assert max(abs(row.error) for row in times) < 0.05


@long
def test_page_has_these_rows(forms: list[Row], published: list[Row], tmp_path: Path) -> None:
    """Figures of HARP's own congestion control move with it; TCP's stand as they were stored."""
    write_tables([forms, published], tmp_path / "page.md")
    made, stored = (DATED.sub("", path.read_text()) for path in (tmp_path / "page.md", PAGE))
    assert OURS.sub(r"\1\2", made) == OURS.sub(r"\1\2", stored)
    lines = [line for line in made.splitlines() if line.startswith("|") and "HARP: " not in line]
    assert set(lines) <= set(stored.splitlines())


def test_rows_off_change_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    off = Row("case", "figure", 2.0, 1.0, 1.0, "Mb/s", "source")
    monkeypatch.setattr("sim.network.packet.reference_cases.published_rows", lambda: [off])
    monkeypatch.setattr("sim.network.packet.reference_cases.path_rows", list)
    monkeypatch.setattr("sim.validation.closed_forms.collective_rows", list)
    done = CliRunner().invoke(main, ["packet"])
    assert done.exit_code == 1
    assert "case, figure is off by +100% and gives no reason" in done.output


@long
@pytest.mark.parametrize(("loss", "window"), [(1e-3, 44), (1e-4, 216)])
def test_notes_say_what_random_losses_leave_of_cubic(forms: list[Row], loss: float,
                                                     window: float) -> None:
    """RFC 9438's growth, packet by packet, whose losses are drawn: an oracle without a network."""
    drawn = drawn_window(loss, 0.1, round(600 / loss))
    (row,) = (row for row in forms if f"loss {loss:g}" in row.case and "CUBIC" in row.case)
    assert f"{window:g}" in row.note
    assert drawn == pytest.approx(window, rel=0.1)
    assert row.ours == pytest.approx(drawn, rel=0.1)


def drawn_window(loss: float, rtt_s: float, packets: int) -> float:
    """Mean window of CUBIC (C = 0.4, beta = 0.7) where each packet is lost with ``loss``."""
    draws = random.Random(1)
    window = largest = reno = 100.0
    now_s = since_s = plateau_s = area = 0.0
    for _ in range(packets):
        now_s += rtt_s / window
        area += rtt_s
        if draws.random() < loss:
            largest = window if window >= largest else window * (1 + 0.7) / 2
            window = reno = max(window * 0.7, 2)
            since_s, plateau_s = now_s, max((largest - window) / 0.4, 0) ** (1 / 3)
            continue
        reno += 3 * 0.3 / 1.7 / window
        target = 0.4 * (now_s - since_s + rtt_s - plateau_s) ** 3 + largest
        window = max(window + min(max(target - window, 0.01) / window, 0.5), reno)
    return area / now_s
