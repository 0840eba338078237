"""Predict published figures by the fit that never saw their source."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sim.calibration.published import fit_published

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.validation.predict import Prediction


def left_out(rows: Sequence[Prediction]) -> list[Prediction]:
    """Give fitted rows the prediction of the fit that never saw their source."""
    if not any(row.figure.fits for row in rows):
        return list(rows)
    fit = fit_published(bounds=False)
    found = {(row.row.case, row.row.figure): row.left_out for row in fit.rows}
    return [replace(row, value=found[row.case, row.figure]) if row.figure.fits else row
            for row in rows]
