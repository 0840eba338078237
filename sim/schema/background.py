"""Traffic beside the jobs, which nobody of the file's jobs sends or waits for."""

from typing import Annotated, Literal

from pydantic import Field

from sim.schema.base import Model, Name
from sim.schema.units import PositiveShare


class Background(Model):
    """Flows of kernel TCP that come at random, in sizes that were measured."""

    name: Name
    """Name by which scenarios refer to it."""
    senders: Annotated[tuple[str, ...], Field(min_length=1)]
    """Hosts from which flows come, from all of their NICs."""
    receivers: Annotated[tuple[str, ...], Field(min_length=1)]
    """Hosts to which they go; each flow goes to a NIC drawn anew, of another host."""
    load: Annotated[PositiveShare, Field(lt=1)]
    """Mean of what they put on the lines, with headers, as a share of the senders' line rate."""
    sizes: Literal["web-search", "data-mining"] = "web-search"
    """How many bytes flows have: as in DCTCP's cluster (SIGCOMM 2010; 1.7 MB in the mean) or in
    VL2's (SIGCOMM 2009; half have 1 kB, and the mean is 13 MB)."""
    congestion: Literal["cubic", "dctcp", "bbr"] = "cubic"
    """Their congestion control, where there are packets (fidelity packet)."""
