"""`load`: a topology file in, a checked `Topology` out, or one clear error with its position."""

from collections.abc import Sequence
from pathlib import Path

from sim.schema.checks import check
from sim.schema.parameters import PLAIN_VALUES
from sim.schema.source import Source
from sim.schema.topology_model import Topology


def load(path: Path, changes: Sequence[str] = ()) -> Topology:
    """Read, validate and check a topology file, with ``changes`` as of ``--set``.

    Raises TopologyError for the first problem in the order of the file: first of form (keys, types,
    units), and if there is none, of sense (references, sizes that fit, hosts that reach each
    other).
    """
    return checked(Source.read(Path(path), changes))


def checked(source: Source) -> Topology:
    """Make the `Topology` of a source, as `load` does."""
    topology = well_formed(source)
    topology._source = source
    found = list(check(topology))
    if found:
        raise source.first(found)
    return topology


def well_formed(source: Source) -> Topology:
    """Make the `Topology` of a source after a check of its form (keys, types, units) alone."""
    return source.validate(Topology, PLAIN_VALUES | {"folder": source.folder})
