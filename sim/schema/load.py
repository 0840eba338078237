"""`load`: a topology file in, a checked `Topology` out, or one clear error with its position."""

from collections.abc import Sequence
from pathlib import Path

from sim.schema.checks import check
from sim.schema.model import Topology
from sim.schema.parameters import PLAIN_VALUES
from sim.schema.source import Source


def load(path: Path, changes: Sequence[str] = ()) -> Topology:
    """Read, validate and check a topology file, with ``changes`` as of ``--set``.

    Raises TopologyError for the first problem in the order of the file: first of form (keys, types,
    units), and if there is none, of sense (references, sizes that fit, hosts that reach each
    other).
    """
    source = Source.read(Path(path), changes)
    topology = source.validate(Topology, PLAIN_VALUES | {"folder": source.folder})
    topology._source = source
    found = list(check(topology))
    if found:
        raise source.first(found)
    return topology
