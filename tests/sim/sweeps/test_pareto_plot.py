"""The picture of a sweep's front."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.test_sweep import run, sweep_file

if TYPE_CHECKING:
    from pathlib import Path


def test_the_front_is_drawn(tmp_path: Path) -> None:
    sweep = sweep_file(tmp_path, objectives={"images_per_s": "max",
                                             "hosts[0].nics[0].rate": "min"})
    done = run(sweep, "-o", tmp_path / "r.csv", "--plot", tmp_path / "p.svg")
    assert done.exit_code == 0, done.output
    assert "Pareto front" in done.output
    drawn = (tmp_path / "p.svg").read_text()
    for words in ("Pareto front", "images_per_s (max)", "hosts[0].nics[0].rate (min)"):
        assert f"<!-- {words} -->" in drawn
