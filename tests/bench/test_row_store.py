"""Stored rows name the date, commit and machine of their measurement."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from bench.row_store import Store, when_measured

if TYPE_CHECKING:
    from pathlib import Path


def test_saved_rows_have_a_stamp_and_others_keep_theirs(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    old = {"date": "2026-01-02", "commit": "0123abcd", "machine": "another"}
    file.write_text(json.dumps([{"id": "a", "value": 1, "stamp": old}, {"id": "b", "value": 2}]))
    Store(file).save([{"id": "b", "value": 3}])
    rows = {row["id"]: row for row in json.loads(file.read_text())}
    assert rows["a"] == {"id": "a", "value": 1, "stamp": old}
    assert rows["b"]["value"] == 3
    assert rows["b"]["stamp"]["date"] == datetime.now(timezone.utc).date().isoformat()


def test_rows_of_several_days_are_counted_newest_first() -> None:
    def row(date: str) -> dict[str, object]:
        return {"id": date, "stamp": {"date": date, "commit": "abc", "machine": "two CPUs"}}
    rows = [row("2026-01-02"), {"id": "x"}, row("2026-03-04"), row("2026-01-02")]
    assert when_measured(rows) == (
        "1 row of 2026-03-04, commit abc, two CPUs\n2 rows of 2026-01-02, commit abc, two CPUs")
    assert when_measured([{"id": "x"}]) == ""
