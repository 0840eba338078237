"""The laboratory: how much slower than the cluster it is."""

from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from sim.schema.base import Model
from sim.schema.errors import Problem, show

SMALLEST, LARGEST = Fraction(1, 100_000), Fraction(1)
_ALLOWED = "a share such as 1/100 or 0.01, from 1/100000 to 1"


def _read_scale(given: Any) -> float:
    try:
        scale = Fraction(str(given))
    except (ValueError, ZeroDivisionError):
        raise Problem(f"{show(given)} is no share", found=given, allowed=_ALLOWED) from None
    if not SMALLEST <= scale <= LARGEST:
        raise Problem(f"{show(given)} is out of range", found=given, allowed=_ALLOWED)
    return float(scale)


Scale = Annotated[float, BeforeValidator(_read_scale), WithJsonSchema(
    {"type": ["number", "string"], "examples": ["1/100"]})]


class Lab(Model):
    """What `--fidelity lab` needs to know beside the cluster."""

    scale: Scale = 0.01
    """Share of their rates at which links run; a step takes as many times as long."""
