"""Tuning tables: the file's format, and rows that cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.tuning import (
    ALGORITHMS,
    COLLECTIVES,
    PROTOCOLS,
    Communicator,
    Row,
    Tuning,
    TuningError,
)
from tests.support import ROOT
from tests.support.json_schemas import validate

SCHEMA = json.loads((ROOT / "docs" / "use" / "harp-tuning-1.schema.json").read_text())
BYTES = st.sampled_from([0, 1, 2, 1 << 20, 1 << 40])
ROWS = st.builds(
    lambda collective, ends, *choice: Row(collective, min(ends), max(ends), *choice),
    st.sampled_from(COLLECTIVES), st.tuples(BYTES, BYTES), st.sampled_from(ALGORITHMS),
    st.sampled_from(PROTOCOLS), st.integers(0, 64),
    st.none() | st.floats(1, 9).map(lambda gain: round(gain, 3)))
TABLES = st.lists(st.builds(Communicator, st.integers(1, 2), st.integers(1, 2),
                            st.lists(ROWS, max_size=4).map(tuple)), max_size=3).map(
    lambda communicators: Tuning(tuple(communicators)))


@given(TABLES)
@settings(max_examples=15, deadline=None)
def test_a_table_is_as_its_schema_says_and_reads_back(table: Tuning) -> None:
    validate(json.loads(table.to_json()), SCHEMA)
    assert Tuning.from_json(table.to_json()) == table


@given(TABLES, st.integers(1, 2), st.integers(1, 2), BYTES)
def test_rows_that_hold_a_size_are_found_in_their_order(
        table: Tuning, ranks: int, nodes: int, nbytes: int) -> None:
    kinds = [(one.ranks, one.nodes) for one in table.communicators]
    rows = [row for kind, one in zip(kinds, table.communicators, strict=True)
            for row in one.rows if kind == (ranks, nodes)]
    for collective in COLLECTIVES:
        assert list(table.find(ranks, nodes, collective, nbytes)) == [
            row for row in rows if row.collective == collective
            and nbytes in range(row.min_bytes, row.max_bytes + 1)]
    assert table.has(ranks, nodes) == ((ranks, nodes) in kinds)


@pytest.mark.parametrize(("text", "sentence"), [
    ("{", "it is no JSON: line 1"),
    ('{"format": "harp-plan-1"}',
     "its format is 'harp-plan-1' and this HARP reads 'harp-tuning-1'"),
    ('{"format": "harp-tuning-1", "communicators": [{"ranks": 0}]}',
     r"communicators\[0\].ranks is 0: a whole number from 1 to"),
    ('{"format": "harp-tuning-1", "communicators": [{"ranks": 8, "nodes": 2, "rows": '
     '[{"collective": "AllRedcue"}]}]}', r"did you mean AllReduce")])
def test_a_text_that_is_no_table_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(TuningError, match=sentence) as error:
        Tuning.from_json(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("change", "sentence"), [
    ({"algorithm": "Rnig"}, "algorithm is 'Rnig': allowed are Tree, Ring"),
    ({"channels": 65}, "channels is 65: allowed are 0 to 64"),
    ({"min_bytes": 10, "max_bytes": 9}, "min_bytes 10 is above max_bytes 9"),
    ({"max_bytes": 1.5}, "max_bytes is 1.5: allowed are whole numbers from 0")])
def test_a_row_that_cannot_be(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TuningError, match=sentence):
        Row(**{"collective": "AllReduce", "min_bytes": 0, "max_bytes": 9, "algorithm": "Ring",
               "protocol": "LL", **change})
