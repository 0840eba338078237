"""Whether a well-formed topology makes sense."""

from collections.abc import Iterator

from sim.schema.errors import Problem
from sim.schema.model import Topology


def check(topology: Topology) -> Iterator[Problem]:
    """Every problem of sense, in no particular order."""
    yield from ()
