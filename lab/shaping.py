"""Queueing disciplines that shape what leaves a device, as words of tc."""

from __future__ import annotations

LATE_S = 2e-4
"""By the wall clock: how late tbf's timer may come without loss of rate."""


def burst_bytes(rate_bps: float, mtu: int) -> int:
    """Return the burst that a rate needs: a frame, and the bytes of a late timer.

    A small burst cuts larger segments, so that few bytes are sent before their time.
    """
    return mtu + 14 + int(rate_bps * LATE_S / 8)  # tbf counts Ethernet's header


def tbf(rate_bps: float, burst: int, queue_bytes: int) -> str:
    """A queue of some bytes that is emptied at a rate (tc-tbf(8))."""
    return f"tbf rate {rate_bps:.0f}bit burst {burst} limit {queue_bytes}"
