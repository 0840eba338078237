"""Prices of hosts, and the amount of training to pay for."""

from typing import Annotated

from pydantic import Field, model_validator

from sim.schema.base import Line, Model
from sim.schema.input_errors import Problem

Price = Annotated[float, Field(ge=0, le=1e9)]
"""Money for an hour of one host."""
Amount = Annotated[float, Field(ge=1, le=1e18)]
"""Samples or tokens."""


class Prices(Model):
    """Prices of hosts, for the cost of a step, a day and a whole training of each row."""

    hosts: Annotated[dict[str, Price], Field(min_length=1)]
    """An hour of one host, by the name of its group; a host used in part is paid whole."""
    currency: Annotated[Line, Field(min_length=1, max_length=8)] = "USD"
    """Name of the money."""
    samples: Amount | None = None
    """Samples of a whole training."""
    tokens: Amount | None = None
    """Instead of it: tokens, for models of text."""

    @model_validator(mode="after")
    def _one_amount(self) -> "Prices":
        if self.samples is not None and self.tokens is not None:
            raise Problem("has both samples and tokens", allowed="one of the two")
        return self
