"""Numbers in options, where Python's own reading lets through what no command can use."""

from __future__ import annotations

import math
import re
from typing import Any

import click


class Number(click.FloatRange):
    """A number within bounds, which "nan" is not although it is outside of none."""

    def convert(self, value: Any, param: click.Parameter | None,
                ctx: click.Context | None) -> float:
        """Read it."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def whole(text: str) -> int | None:
    """Read digits as a number; None if there are others, or more than any number here has."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None
