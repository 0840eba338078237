"""The table of costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from sim.run import main
from tests.sim.answer.test_cost import PRICE, file

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def run(tmp_path: Path, prices: dict) -> Result:
    return CliRunner().invoke(main, [str(file(tmp_path, prices)), "--draws", "0"])


def test_the_table_stands_below_the_answer(tmp_path: Path) -> None:
    done = run(tmp_path, {"hosts": {"h": PRICE}, "currency": "EUR", "samples": "1e6"})
    assert "EUR\na day" not in done.output  # two lines of a header
    lines = done.output.splitlines()
    assert any("EUR" in line and "days to" in line for line in lines)
    assert any(line.split()[-3:-2] == ["864"] for line in lines)
