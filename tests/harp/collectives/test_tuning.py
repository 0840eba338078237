"""Tuning tables: the file's format, and rows that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from harp.collectives.tuning import Row, TuningError


@pytest.mark.parametrize(("change", "sentence"), [
    ({"algorithm": "Rnig"}, "algorithm is 'Rnig': allowed are Tree, Ring"),
    ({"channels": 65}, "channels is 65: allowed are 0 to 64"),
    ({"min_bytes": 10, "max_bytes": 9}, "min_bytes 10 is above max_bytes 9"),
    ({"max_bytes": 1.5}, "max_bytes is 1.5: allowed are whole numbers from 0")])
def test_a_row_that_cannot_be(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TuningError, match=sentence):
        Row(**{"collective": "AllReduce", "min_bytes": 0, "max_bytes": 9, "algorithm": "Ring",
               "protocol": "LL", **change})
