"""Switches as fidelity `packet` has them: what their ports may keep waiting, and what they mark."""

from typing import Annotated

from pydantic import Field, Strict

from sim.schema.base import Flag, Model
from sim.schema.units import Bytes, PositiveBytes

MARK_BYTES_PER_BPS = 65 * 1500 / 10e9
"""65 packets of 1,500 B at 10 Gb/s (Alizadeh et al., DCTCP, SIGCOMM 2010, section 3.5, as deployed
there). Published."""

Alpha = Annotated[float, Strict(), Field(ge=2**-7, le=2**7)]
"""Broadcom's and SONiC's steps are powers of two from 1/128 to 8."""


PAUSE_FRAME_BYTES = 84
PAUSE_RESPONSE_BYTES = 3840
"""What may leave a port that takes 60 quanta of 512 bits to obey a PAUSE frame (IEEE 802.1Qbb,
annex O). Published."""


class Pfc(Model):
    """Pauses instead of drops (IEEE 802.1Qbb), of one priority."""

    xoff: PositiveBytes | None = None
    """Bytes that came by a link and wait, above which its sender must pause; where not given, alpha
    times what is free (Zhu et al., SIGCOMM 2015)."""
    xon_offset: PositiveBytes | None = None
    """How many bytes less must wait for it to go on; where not given, two packets (the same)."""
    headroom: Bytes | None = None
    """Of the buffer for each link, for what comes until its sender has paused; where not given, by
    its latency and rate (annex O of 802.1Qbb)."""

    def headroom_bytes(self, bits_per_s: float, latency_s: float, frame_bytes: int) -> int:
        """Headroom of a link whose longest frame takes so many bytes on it."""
        if self.headroom is not None:
            return self.headroom
        return (round(2 * latency_s * bits_per_s / 8) + 2 * frame_bytes + PAUSE_FRAME_BYTES
                + PAUSE_RESPONSE_BYTES)


class Switch(Model):
    """Buffer, marks and pauses of every switch; only fidelity packet has them."""

    buffer: PositiveBytes = 32_000_000
    """What the ports of a switch share; 32MB is Broadcom's Trident 3 (BCM56870), others have 16 to
    113MB."""
    alpha: Alpha = 1.0
    """A port may keep so many times what is free waiting, and drops what comes then (Choudhury and
    Hahne, IEEE/ACM ToN 1998; 1 to 8 is common)."""
    mark: Bytes | None = None
    """Bytes that wait at a port above which packets get an ECN mark, 0B for none; where not given,
    65 packets of 1,500 B at 10 Gb/s, and in proportion at other rates (DCTCP, SIGCOMM 2010)."""

    acks_first: Flag = False
    """Frames without payload go first at its ports, as where operators give them a class of their
    own; else an ACK waits behind the data that comes by the same port."""
    pfc: Pfc | None = None
    """Switches pause who sends to them instead of dropping; where not given, they drop."""

    def mark_bytes(self, bits_per_s: float) -> int:
        """Threshold of a port of this rate; 0 marks nothing."""
        return round(MARK_BYTES_PER_BPS * bits_per_s) if self.mark is None else self.mark
