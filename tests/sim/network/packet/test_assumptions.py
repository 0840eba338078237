"""Limits of fidelity packet that no file gives."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sim.network.packet import assumptions
from sim.run import main
from tests.support import ROOT

BONDED = ROOT / "topologies" / "bonded-ecmp-2x4.yaml"


@pytest.mark.parametrize(("arguments", "says"), [
    (["--scenario", "1 channel, one path"], "are more than the 1,000 of fidelity packet"),
    (["--collective", "allreduce", "--sizes", "1GiB"], "smaller --sizes"),
])
def test_a_run_that_takes_too_long_is_refused_before_it_begins(
        arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assumptions, "MOST_FRAMES", 1000)
    done = CliRunner().invoke(main, [str(BONDED), *arguments, "--fidelity", "packet"])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())
    assert "Traceback" not in done.output
