"""The topology file: its model, its loader, and errors that point at a line and a column.

Where to look:

    load.py            the way in: source, then form, then sense
    source.py          YAML as nodes that remember line and column; --set
    topology_model.py  the whole file; its keys are in hosts.py and *_keys.py
    base.py            the keys' base: a wrong key is refused with the nearest one
    checks.py          what must hold between keys: references, sizes, the fabric
    input_errors.py    the sentence of an error
    parameters.py      figures with interval and source: host stacks and frameworks
"""

from sim.schema.input_errors import Problem, TopologyError, exit_on_error
from sim.schema.load import load
from sim.schema.topology_model import Topology

__all__ = ["Problem", "Topology", "TopologyError", "exit_on_error", "load"]
