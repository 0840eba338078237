"""`load_rates`: what others send over links, for ``harp plan --around``."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sim.schema.base import Line, Model
from sim.schema.source import Source
from sim.schema.units import RATE


class LinkRates(Model):
    """Traffic that is not the job's, as a monitor of the switches measures it."""

    rates: Annotated[dict[Line, Annotated[float, replace(RATE, zero=True)]], Field(min_length=1)]
    """Rate by link: leaf0->spine1; of several cables between the same two each has it."""


def load_rates(path: Path) -> dict[str, float]:
    """Read and check a file; raises TopologyError."""
    return Source.read(path).validate(LinkRates).rates
