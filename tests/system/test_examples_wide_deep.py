"""The example examples/ttf/wide_deep.py, by the one command that it names."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support import PATIENCE_S, ROOT
from tests.support.levels import long
from tests.support.torch_ranks import run_alone

EXAMPLE = ROOT / "examples" / "ttf" / "wide_deep.py"


def run(*arguments):
    return subprocess.run([sys.executable, EXAMPLE, *arguments], text=True, capture_output=True,
                          check=False, timeout=PATIENCE_S)


@long
def test_wide_and_deep_goes_on_with_other_ranks_over_days_of_new_ids(tmp_path):
    done = run("--clicks", "6000", "--batch", "60", "--ranks", "2,1", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    days = re.findall(r"day (\d), (\d) ranks: AUC ([\d.]+), (\d+) rows, (\d+) evicted, (\w+)",
                      done.stdout)
    assert [day[:2] for day in days] == [*zip("123", "222", strict=True),
                                         *zip("45", "11", strict=True)]
    assert [day[5] for day in days] == ["full", *["delta"] * 4]
    assert all(float(day[2]) > 0.6 for day in days[1:])
    assert all(int(day[4]) > 1000 for day in days[1:])
    assert len(list(tmp_path.glob("*.safetensors"))) == 3 * 2 + 2


@pytest.mark.parametrize("ranks", ["2", "0,1", "a,b"])
def test_ranks_that_make_no_sense_are_a_sentence(ranks):
    done = run_alone(EXAMPLE, "--ranks", ranks)
    assert done.returncode == 2
    assert f"argument --ranks: {ranks!r}: two numbers from 1 on, as in 2,3" in done.stderr
