"""Time that kernel TCP's congestion windows cost at the start of a transfer, on long round trips.

A new connection may send ten segments in its first round trip (RFC 6928; Linux's TCP_INIT_CWND),
and doubles its window in each round trip (slow start, RFC 5681) until it holds what the rate brings
in a round trip. After a pause it begins with half of its window for each retransmission timeout
that the pause lasted, ten segments at least (RFC 2861; Linux's tcp_slow_start_after_idle, on by
default), and doubles again. With a first window W, a round trip R, and a rate r that the fluid
gives,

    k = the lesser of  ⌈lg (r R / W)⌉  and  ⌈lg (b / W + 1)⌉ - 1        round trips
    lost = k R - W (2^k - 1) / r

for a transfer of b bytes: the second k is of what is over before the window is open (Cardwell,
Savage and Anderson, "Modeling TCP Latency", INFOCOM 2000, without losses). Confidence: the kernel's
documented behaviour; `tests/sim/network/flow/test_windows.py` holds it to the segments of fidelity
packet within 10 %. Left out are HyStart, which may end doubling before r R, losses of overshoot,
and that a window opens to twice of what the receiver admits, where that is the limit: a transfer
after a pause is then up to a fifth too slow.

A round that fills less than half of its window opens it no further (tcp_is_cwnd_limited).

The length of a stretch makes no difference nearby: below `FAR_S` slow start is over within some
ten round trips, less than 10 ms, and is left out. HARP's own sessions keep their windows over a
pause, and double them at first as TCP does. Then they grow by a hundredth or two a round trip, up
to twice what is in flight, since their target is a queue of 2 ms at most (cnet/cc/swift.c): bursts
of a megabyte and less over 40 ms take up to a third longer than here for hundreds of round trips.
Fidelity packet runs the sessions, and shows that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Key = tuple[bytes, ...]

FIRST_SEGMENTS = 10
"""Segments of a new connection's first window (RFC 6928)."""
LEAST_TIMEOUT_S = 0.2
"""Shortest retransmission timeout beyond the round trip (Linux's TCP_RTO_MIN, and tcp_set_rto)."""
FAR_S = 1e-3
"""Shortest round trip over which windows are followed. Assumed: a datacenter's are a tenth of it, a
region's more."""


@dataclass
class Windows:
    """Windows of the sockets of a set of edges, after their last transfer.

    Args:
        round_trip_s: of each edge; 0 for one that does not count.
        sockets: of each edge, which share its bytes evenly.
        segment_bytes: payload of a full segment.
        begins_anew: whether windows shrink over a pause; BBR's do not.

    """

    round_trip_s: Floats
    sockets: int
    segment_bytes: int
    begins_anew: bool = True

    def __post_init__(self) -> None:
        self._first = float(FIRST_SEGMENTS * self.segment_bytes * self.sockets)
        self._window = np.full(len(self.round_trip_s), self._first)
        self._ended_s = -np.inf

    def lost_s(self, nbytes: Floats, began_s: float, ended_s: float) -> float:
        """Give what windows add to a transfer that the fluid made, and remember theirs after it.

        Args:
            nbytes: that each edge moved between both times.
            began_s: when the transfer began.
            ended_s: when its last byte had moved, at the fluid's rates.
        """
        took_s = ended_s - began_s
        moved = (nbytes > 0) & (self.round_trip_s >= FAR_S)
        if took_s <= 0 or not moved.any():
            return 0.0
        rtt_s, nbytes = self.round_trip_s[moved], nbytes[moved]
        rate = nbytes / took_s
        window = self._after_pause(began_s)[moved]
        full = np.maximum(rate * rtt_s, window)
        to_open = np.ceil(np.log2(full / window))
        to_end = np.ceil(np.log2(nbytes / window + 1)) - 1
        rounds = np.minimum(to_open, to_end)
        early = window * (2**rounds - 1)
        lost = float((rounds * rtt_s - early / rate).max())
        grown, last = window * 2**rounds, nbytes - early
        self._window[moved] = np.minimum(np.where(2 * last > grown, grown + last, grown), full)
        self._ended_s = ended_s + lost
        return lost

    def _after_pause(self, now_s: float) -> Floats:
        """Windows of connections that have not sent since their last transfer."""
        pause_s = now_s - self._ended_s
        if pause_s == np.inf or not self.begins_anew:
            return self._window
        halvings = np.floor(pause_s / (self.round_trip_s + LEAST_TIMEOUT_S))
        return np.maximum(self._window * 0.5**halvings, self._first)
