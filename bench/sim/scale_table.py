"""Speed of the simulator at scale: ``python bench/sim/scale_table.py [--json] [--rows ID,ID]``.

Each row runs in a process of its own, so that its peak memory is its own; what takes less than a
second is repeated there and the median counts. ``value`` is wall time in seconds; what the rows
are and what bounds them is in docs/performance.md. Exit code 1 when a row misses its target.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any


from bench.sim.scale_rows import ROOT, ROWS, measure


def run_row(name: str, tolerance: float | None) -> dict[str, Any]:
    """Run one row in a child process and judge it."""
    command = [sys.executable, __file__, "--worker", name]
    if tolerance is not None:
        command += ["--tolerance", repr(tolerance)]
    start_s = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    command_s = time.perf_counter() - start_s
    detail = json.loads(done.stdout)
    value = detail.pop("seconds")
    if name.endswith("-command"):
        value = command_s
    row = ROWS[name]
    ok = ((row.target_s is None or value <= row.target_s)
          and (row.target_mb is None or detail["memory_mb"] <= row.target_mb))
    return {"id": name, "value": value, "unit": "s", "target": row.target_s, "ok": ok,
            "what": row.what, "memory_target_mb": row.target_mb, "command_s": command_s,
            "folding": "none", **detail}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    from rich.table import Table

    from sim.report.screen import console_for

    table = Table("row", "what", box=None)
    for header in ("time", "target", "peak", "of", "tolerance", "ok"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["id"], row["what"], f"{row['value']:.3g} s", _limit(row["target"], "s"),
            f"{row['memory_mb']:.0f} MB", _limit(row["memory_target_mb"], "MB"),
            _limit(row["tolerance"], ""), "yes" if row["ok"] else "NO")
    console_for(sys.stdout).print(table)


def _limit(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:g} {unit}".strip()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the options; unknown rows end with one sentence."""
    parser = argparse.ArgumentParser(description="Speed of the simulator at scale.")
    parser.add_argument("--json", action="store_true", help="print a list of rows as JSON")
    parser.add_argument("--rows", default=",".join(ROWS), help="rows to run, by comma")
    parser.add_argument("--tolerance", type=float, help="merge completions within this share of "
                        "a flow's age, instead of each row's own tolerance")
    parser.add_argument("--worker", choices=ROWS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.rows = options.rows.split(",")
    for name in options.rows:
        if name not in ROWS:
            parser.error(f"there is no row {name!r}; there are {', '.join(ROWS)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the rows."""
    options = parse(arguments)
    if options.worker:
        print(json.dumps(asdict(measure(options.worker, options.tolerance))))
        return 0
    rows = [run_row(name, options.tolerance) for name in options.rows]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        show(rows)
    return int(not all(row["ok"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
