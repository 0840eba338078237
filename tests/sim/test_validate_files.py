"""``python -m sim.validate FILE...``: a user's own figures against the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from sim.validate import main
from tests.support.cluster_files import IDEAL, topology, write

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {"scenario": "s", "kind": "measured", "within": "2%", "source": "this test"}
ALLREDUCE = {**GOOD, "size": "1GiB", "busbw": "12.5GB/s"}
"""Two ranks at 100 Gb/s without any cost: busbw is the line's rate."""


def scored(tmp_path: Path, *figures: dict, options: tuple[str, ...] = ("--draws", "0"),
           **top: object) -> Result:
    data = topology(expect=list(figures), **top)
    return CliRunner().invoke(main, [str(write(tmp_path, data)), *options])


def test_figures_that_hold_end_with_status_0(tmp_path: Path) -> None:
    done = scored(tmp_path, ALLREDUCE, {**ALLREDUCE, "busbw": None, "time": "85.9ms"},
                  {**ALLREDUCE, "busbw": None, "algbw": "12.5GB/s", "algorithm": "ring"},
                  {**ALLREDUCE, "collective": "alltoall", "busbw": "12.5GB/s"})
    assert done.exit_code == 0, done.output
    assert done.output.count("1 GiB") == 4


def test_a_figure_that_is_missed_ends_with_status_1_and_is_named(tmp_path: Path) -> None:
    done = scored(tmp_path, ALLREDUCE, {**ALLREDUCE, "algorithm": "ring", "busbw": "10GB/s"})
    assert done.exit_code == 1
    assert "is off by +25%; allowed: 2%" in done.output


def test_training_and_collectives_stand_side_by_side(tmp_path: Path) -> None:
    # VGG16 at 100 TFLOP/s; the answer is what counts here, not the figure.
    done = scored(tmp_path, {**GOOD, "gpus": 2, "images_per_s": 1, "within": "100%"}, ALLREDUCE)
    assert done.exit_code == 1
    assert "s, 2 GPUs" in done.output
    assert "s, 1 GiB" in done.output


def test_fitted_rows_are_not_scored(tmp_path: Path) -> None:
    done = scored(tmp_path, {"scenario": "s", "gpus": 2, "images_per_s": 1, "kind": "fitted",
                             "within": "2%", "source": "x"})
    assert done.exit_code == 2
    assert "has no figures to score" in done.output


def test_intervals_come_from_the_stack(tmp_path: Path) -> None:
    slow = {**IDEAL, "threads": 1, "cost_per_byte": {
        "value": "0.2ns", "low": "0.1ns", "high": "0.4ns", "confidence": "assumed", "source": "x"}}
    done = scored(tmp_path, {**ALLREDUCE, "busbw": "2.5GB/s"}, options=("--draws", "8"),
                  stacks={"ideal": slow})
    # One thread of 0.2 ns a byte sends and receives.
    assert "P10 to P90 hold 100 %" in done.output.replace("\n", " ")


@pytest.mark.parametrize(("figure", "says"), [
    ({**ALLREDUCE, "time": "1ms"}, "gives busbw, time; allowed: one of busbw, algbw and time"),
    ({**ALLREDUCE, "busbw": None}, "gives no quantity"),
    ({**ALLREDUCE, "collective": "alltoall", "algorithm": "ring"}, "alltoall has no ring"),
    ({**ALLREDUCE, "scenario": "z"}, "'z' is not a known scenario; allowed: s"),
    ({**ALLREDUCE, "sise": "1MiB"}, "did you mean 'size'?"),
    ({**ALLREDUCE, "collective": "alltoall", "gpus": 2}, ": expect[0].gpus: unknown key 'gpus'"),
    ({**GOOD, "collective": "alltoall", "busbw": "1GB/s"}, ": expect[0].size: is missing"),
    ({**ALLREDUCE, "collective": "alltoal"}, ": expect[0].collective: found 'alltoal'"),
])
def test_a_wrong_figure_is_one_sentence(tmp_path: Path, figure: dict, says: str) -> None:
    done = scored(tmp_path, figure)
    assert done.exit_code == 2
    assert says in done.output
    assert done.output.count("\n") == 1


@pytest.mark.parametrize(("words", "says"), [
    (["nowhere.yaml"], "there is no file nowhere.yaml"),
    (["publishd"], "did you mean 'published'?"),
    (["published", "lab"], "published stands alone"),
])
def test_a_wrong_word_is_one_sentence(words: list[str], says: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert says in done.output
