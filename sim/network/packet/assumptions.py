"""Constants of the packet network that a topology file does not give.

Each figure has its source and its confidence.
"""

from __future__ import annotations

UNIT_BYTES = 64 << 10
"""Unit of a message's transfer within a host, so that several messages share its resources.
Assumed: fine enough beside pieces of 512 KiB."""
IDLE_CONNECTIONS = 4096
"""Idle connections that stay open; 4,096 take 0.2 GB. Assumed: NCCL keeps all of them, but only an
all-to-all of more than some hundred GPUs has more."""
MOST_FRAMES = 300_000_000
"""Most frames of one simulation: six minutes in a ring of neighbours to an hour in an all-to-all
over three tiers (docs/results/performance.md). Assumed as the longest acceptable wait."""
CAPTURE_BYTES = 256 << 20
"""Size at which a capture ends: Wireshark still opens it with ease."""
