"""Faults: what breaks during a scenario, when, and how fast it is noticed and mended."""

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field

from sim.schema.base import Model, Name
from sim.schema.errors import Problem, listing, show
from sim.schema.units import Period, PositiveShare, Seconds


class _Fault(Model):
    name: Name
    """Name by which scenarios refer to it."""
    at: Seconds
    """When it begins."""
    duration: Period | None = Field(None, alias="for")
    """How long it lasts; to the end where not given."""


class _LinkFault(_Fault):
    link: Annotated[str, Field(min_length=3, max_length=300)]
    """``a-b`` for both directions of the link between a and b, ``a->b`` for one."""


class _Rerouted(_LinkFault):
    detection: Seconds = 50e-3
    """From the fault to its being noticed."""
    recovery: Seconds = 10e-3
    """From being noticed to traffic on other paths."""


class LinkDown(_Rerouted):
    """The link carries nothing."""

    kind: Literal["link-down"]
    """The kind of fault."""


class LinkDegrade(_LinkFault):
    """The link carries a share of its rate."""

    kind: Literal["link-degrade"]
    """The kind of fault."""
    factor: PositiveShare
    """Share of the rate that is left."""


class LinkFlap(_Rerouted):
    """The link goes down and up again, half of each period."""

    kind: Literal["link-flap"]
    """The kind of fault."""
    period: Period = 10e-3
    """Length of one down and up."""


class SlowGpu(_Fault):
    """One GPU computes at a share of its speed."""

    kind: Literal["slow-gpu"]
    """The kind of fault."""
    gpu: Annotated[str, Field(min_length=1)]
    """The GPU as host/index, e.g. gn10xp-0/3."""
    factor: PositiveShare
    """Share of the speed that is left."""


Fault = Annotated[LinkDown | LinkDegrade | LinkFlap | SlowGpu, Field(discriminator="kind")]
"""A fault, told by its ``kind``."""


def link_ends(link: str, nodes: Collection[str]) -> tuple[str, str, bool]:
    """Nodes that ``a-b`` or ``a->b`` names, and whether it means one direction only.

    Names may hold hyphens themselves, so every split is tried against ``nodes``. Raises Problem.
    """
    arrow = "->" in link
    mark = "->" if arrow else "-"
    parts = link.split(mark)
    splits = [(mark.join(parts[:cut]), mark.join(parts[cut:])) for cut in range(1, len(parts))]
    for near, far in splits:
        if near in nodes and far in nodes:
            return near, far, arrow
    right = (near + mark + node if near in nodes else node + mark + far
             for near, far in splits if near in nodes or far in nodes for node in nodes)
    raise Problem(f"{show(link)} does not join two nodes of the fabric", found=link, names=right,
                  allowed=f"a-b or a->b with a and b among {listing(nodes)}")
