"""Tables of what was tuned."""

from __future__ import annotations

import pytest

from harp.collectives.protocol import SIMPLE
from harp.collectives.tuning import Communicator, Row
from sim.answer.nccl_tuning import Size, Tuned
from sim.network.nccl import Choice
from sim.report.tuning_tables import print_tuned


@pytest.mark.parametrize(("rows", "line"), [
    (1, "1 row changes 1 of 2 sizes, up to 2.00 times as fast."),
    (2, "2 rows change 1 of 2 sizes, up to 2.00 times as fast."),
    (0, "0 rows change 1 of 2 sizes, up to 2.00 times as fast."),
])
def test_rows_are_counted_in_words(capsys: pytest.CaptureFixture[str], rows: int,
                                   line: str) -> None:
    own, best = Choice("ring", SIMPLE, 2e-6), Choice("tree", SIMPLE, 1e-6)
    sizes = [Size(8, own, 2e-6, best, 1e-6), Size(16, own, 2e-6, None, 2e-6)]
    row = Row("AllReduce", 8, 8, "Tree", "Simple")
    print_tuned(Tuned(Communicator(8, 2, (row,) * rows), {"allreduce": sizes}, 2, 2))
    assert line in capsys.readouterr().out
