"""One answer over another, a dot for each case, as a picture of a page."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def draw_ratios(names: Sequence[str], errors: Sequence[float], within: float,
                label: str) -> bytes:
    """Draw 1 + error of each case, over the band in which it should lie, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.3 * len(names) + 1), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(names), 0, -1)
    axes.axvspan(1 - within, 1 + within, color="0.93")
    axes.axvline(1.0, color="0.6", linewidth=1)
    axes.plot([1 + error for error in errors], list(places), "o", color="tab:blue")
    axes.set_yticks(list(places), names)
    axes.set_xlabel(label)
    stored = BytesIO()
    figure.savefig(stored, format="png", dpi=100)
    return stored.getvalue()
