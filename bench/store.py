"""Rows that bench/comparison.py, bench/nccl/nccl_rows.py and bench/lightcc/lightcc_rows.py measured: kept in a file, and printed as a table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

_LINE = "{:<19} {:<43} {:>12} {:>13}  {:>7} {:<23} {:>5} {:>8}  {}"


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table: a line for each row, and its further figures below it."""
    print(_LINE.format("row", "what", "value", "spread", "beside", "", "ratio", "target", "met"))
    for row in rows:
        beside, named = row["reference"] or row["floor"], row["reference_is"] or row["floor_is"]
        print(_LINE.format(
            row["id"], row["what"][:43], f"{_brief(row['value'])} {row['unit']}",
            f"{_brief(row['least'])}…{_brief(row['most'])}", _brief(beside) if beside else "",
            (named or "")[:23], f"{row['ratio']:.2f}" if row["ratio"] else "",
            _limit(row), ("yes" if row["ok"] else "NO") if _limit(row) else "").rstrip())
        for name, most in row["limits"].items():
            value = row["further"][name]
            print(_LINE.format("", f"  {name.replace('_', ' ')}",
                               "" if value is None else _brief(value), *[""] * 4, f"≤ {most:g}",
                               "").rstrip())


def _limit(row: dict[str, Any]) -> str:
    if row["within"] is not None:
        return f"1 ± {row['within']:g}"
    return f"{'≤' if row['lower_is_better'] else '≥'} {row['target']:g}" if row["target"] else ""


def _brief(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


class Kept:
    """A file of rows by name; for argparse, so that another file ends with one sentence."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.rows: dict[str, dict[str, Any]] = {}
        if not self.path.exists():
            return  # it is yet to be made
        try:
            self.rows = {row["id"]: row for row in json.loads(self.path.read_text())}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise argparse.ArgumentTypeError(f"{path} is no file of rows ({error})") from None

    def save(self, rows: list[dict[str, Any]]) -> None:
        """Put rows in the place of those of the same name; the file is whole at any time."""
        self.rows.update({row["id"]: row for row in rows})
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text(json.dumps(list(self.rows.values()), indent=2) + "\n")
        fresh.replace(self.path)
