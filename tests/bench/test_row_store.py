"""Rows are stored as they are measured, with the date, commit and machine of their measurement."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from bench import row_store
from bench.arms import Sample
from bench.comparison import ArmRow, measure
from bench.row_store import Store, when_measured
from bench.rows import Row
from bench.subject import BenchError, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bench.arms import Bench
    from bench.comparison import Arms
    from bench.rows import Result


def test_saved_rows_have_a_stamp_and_others_keep_theirs(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    old = {"date": "2026-01-02", "commit": "0123abcd", "machine": "another"}
    file.write_text(json.dumps([{"id": "a", "value": 1, "stamp": old}, {"id": "b", "value": 2}]))
    Store(file).save([{"id": "b", "value": 3}])
    rows = {row["id"]: row for row in json.loads(file.read_text())}
    assert rows["a"] == {"id": "a", "value": 1, "stamp": old}
    assert rows["b"]["value"] == 3
    assert rows["b"]["stamp"]["date"] == datetime.now(timezone.utc).date().isoformat()


@pytest.mark.parametrize("end", [KeyboardInterrupt, BenchError("a rank failed")])
def test_a_run_that_ends_early_keeps_what_it_has_measured(tmp_path: Path,
                                                          end: BaseException) -> None:
    def run(_: Sequence[Row]) -> Iterator[Result]:
        yield {"id": "first", "ok": True}
        raise end
    rows = {name: Row(name, "", run) for name in ("first", "second")}
    made = Subject("", rows, run, header="", line=lambda row: str(row["id"]))
    for option in ([], ["--json"]):
        file = tmp_path / f"rows{len(option)}.json"
        done = CliRunner().invoke(made.command("made"), ["--save", str(file), *option])
        assert done.exit_code
        assert [row["id"] for row in json.loads(file.read_text())] == ["first"]


def test_rows_of_a_group_come_before_the_next_group_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)

    @contextmanager
    def good(_: Bench) -> Iterator[Arms]:
        yield {"arm": lambda: Sample(1.0)}

    @contextmanager
    def bad(_: Bench) -> Iterator[Arms]:
        raise BenchError("a tool is missing")
        yield {}
    rows = [ArmRow("one", "", good, "arm"), ArmRow("two", "", bad, "arm"),
            ArmRow("three", "", good, "arm")]
    results = measure(rows, seconds=0.001, rounds=1, cpus=(0, 0))
    assert [next(results)["id"] for _ in range(2)] == ["one", "three"]
    with pytest.raises(BenchError, match="a tool is missing"):
        next(results)


def test_rows_of_a_run_have_one_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of rows in the checkout makes it differ from its commit when the first is written."""
    described = iter(({"commit": "abc"}, {"commit": "abc+"}))
    monkeypatch.setattr(row_store, "stamp", lambda: next(described))
    store = Store(tmp_path / "rows.json")
    for name in ("a", "b"):
        store.save([{"id": name}])
    assert [row["stamp"]["commit"] for row in json.loads(store.path.read_text())] == ["abc"] * 2


def test_rows_of_several_days_are_counted_newest_first() -> None:
    def row(date: str) -> dict[str, object]:
        return {"id": date, "stamp": {"date": date, "commit": "abc", "machine": "two CPUs"}}
    rows = [row("2026-01-02"), {"id": "x"}, row("2026-03-04"), row("2026-01-02")]
    assert when_measured(rows) == (
        "1 row of 2026-03-04, commit abc, two CPUs\n2 rows of 2026-01-02, commit abc, two CPUs")
    assert when_measured([{"id": "x"}]) == ""
