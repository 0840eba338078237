"""Keys of states that do not fit into a GPU: a host's memory and disk, and a scenario's offload.

`harp.angelptm.page_plan` decides which page moves when, for the simulator as for the runtime.
"""

from typing import Annotated, Literal

from pydantic import Field, Strict

from sim.schema.base import Model
from sim.schema.units import PositiveBytes, Rate

PAGE_BYTES = 4 << 20
"""The runtime's, which `harp.angelptm.pages` has from Angel-PTM; a test holds them equal."""


class Disk(Model):
    """A disk of each host that may hold pages; its GPUs share it."""

    capacity: PositiveBytes
    """Bytes for pages."""
    read: Rate
    """Rate of reads of a page or more, several under way."""
    write: Rate | None = None
    """Rate of writes; that of reads where not given."""


class Offload(Model):
    """Pages of parameters, gradients and the optimizer's states beyond the GPU's memory."""

    to: Literal["host", "disk"]
    """The last tier: the host's memory alone, or its disk as well."""
    device: PositiveBytes | None = None
    """Bytes of a GPU for pages; where not given, its memory less activations and buffers."""
    page: Annotated[PositiveBytes, Field(ge=8192, le=1 << 30, multiple_of=8192)] = PAGE_BYTES
    """Bytes of a page, a multiple of 8192."""
    update: Annotated[float, Strict(), Field(ge=1e3, le=1e15)] = 1.37e9
    """Parameters a second that a rank's thread updates on the host; the default is one core's of an
    AMD EPYC (docs/results/angelptm.json, row adam; 0.99e9 to 1.82e9)."""
    slows: Annotated[float, Strict(), Field(ge=0, le=10)] = 0.0
    """Seconds of computing that are lost to a second of moves and updates beside it. A CPU that
    trains has the same cores for both. A GPU copies by engines of its own and loses none (low
    confidence: NVIDIA/nccl#1023, where a user saw kernels no slower)."""
