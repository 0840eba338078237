"""The topology file: its model, its loader, and errors that point at a line and a column."""

from sim.schema.errors import Problem, TopologyError, exit_on_error
from sim.schema.load import load
from sim.schema.model import Topology

__all__ = ["Problem", "Topology", "TopologyError", "exit_on_error", "load"]
