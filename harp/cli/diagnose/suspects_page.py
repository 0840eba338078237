"""The suspects of `harp diagnose` as one HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harp.html_page.tables_page import Part, tables_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harp.cli.diagnose.suspects import Suspect

SURE = "#D55E00"


def diagnose_html(suspects: Sequence[Suspect], says: str, hosts: Sequence[str],
                  missing: Sequence[str], command: str) -> str:
    """Text of the page; ``says`` is what stands on the terminal where nothing is suspect."""
    rows = [[suspect.sentence, "; ".join(suspect.evidence)] for suspect in suspects]
    parts = [Part("Suspects", ["suspect, and how sure", "evidence"], rows, _chart(suspects),
                  "How likely each is at fault, in percent.", 2)] if rows else []
    parts.append(Part("Hosts", ["host", "report"], [
        *([host, "read"] for host in hosts), *([line, "none"] for line in missing)], texts=2))
    return tables_html("harp diagnose", says, parts, command)


def _chart(suspects: Sequence[Suspect]) -> dict[str, Any]:
    return {"xAxis": {"type": "value", "min": 0, "max": 100, "name": "%"},
            "yAxis": {"type": "category", "inverse": True,
                      "data": [suspect.name for suspect in suspects],
                      "axisLabel": {"width": 220, "overflow": "break"}},
            "grid": {"left": 240, "right": 40, "top": 10, "bottom": 40},
            "series": [{"type": "bar", "color": SURE, "barMaxWidth": 28,
                        "data": [round(100 * suspect.confidence, 1) for suspect in suspects]}]}
