"""``sim.validate packet``: kernel TCP of the packet network against others' results."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sim.network.packet.published import published_rows
from sim.records.published import Row
from sim.validate import main
from sim.validation.packet_published import unexplained, write_rows

PAGE = Path(__file__).parent.parent / "docs" / "packet-published.md"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return published_rows()


def test_no_row_is_off_without_a_reason(rows: list[Row]) -> None:
    assert not unexplained(rows)


def test_throughputs_are_within_five_per_cent(rows: list[Row]) -> None:
    rates = [row for row in rows if row.unit == "Mb/s"]
    assert len(rates) == 7
    assert max(abs(row.error) for row in rates) < 0.05


def test_page_is_of_this_version(rows: list[Row], tmp_path: Path) -> None:
    write_rows(rows, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == PAGE.read_text()


def test_rows_off_are_told_by_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    off = Row("case", "figure", 2.0, 1.0, 1.0, "Mb/s", "source")
    monkeypatch.setattr("sim.network.packet.published.published_rows", lambda: [off])
    done = CliRunner().invoke(main, ["packet"])
    assert done.exit_code == 1
    assert "figure is off by +100% and does not say why" in done.output
