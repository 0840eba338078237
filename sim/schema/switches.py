"""Switches as fidelity `packet` has them: what their ports may keep waiting, and what they mark."""

from typing import Annotated

from pydantic import Field, Strict

from sim.schema.base import Model
from sim.schema.units import Bytes, PositiveBytes

MARK_BYTES_PER_BPS = 65 * 1500 / 10e9
"""65 packets of 1,500 B at 10 Gb/s (Alizadeh et al., DCTCP, SIGCOMM 2010, section 3.5, as deployed
there). Published."""

Alpha = Annotated[float, Strict(), Field(ge=2**-7, le=2**7)]
"""Broadcom's and SONiC's steps are powers of two from 1/128 to 8."""


class Switch(Model):
    """Buffer and marks of every switch; only fidelity packet has them."""

    buffer: PositiveBytes = 32_000_000
    """What the ports of a switch share; 32MB is Broadcom's Trident 3 (BCM56870), others have 16 to
    113MB."""
    alpha: Alpha = 1.0
    """A port may keep so many times what is free waiting, and drops what comes then (Choudhury and
    Hahne, IEEE/ACM ToN 1998; 1 to 8 is common)."""
    mark: Bytes | None = None
    """Bytes that wait at a port above which packets get an ECN mark, 0B for none; where not given,
    65 packets of 1,500 B at 10 Gb/s, and in proportion at other rates (DCTCP, SIGCOMM 2010)."""

    def mark_bytes(self, bits_per_s: float) -> int:
        """Threshold of a port of this rate; 0 marks nothing."""
        return round(MARK_BYTES_PER_BPS * bits_per_s) if self.mark is None else self.mark
