"""What the packet network has and a topology file does not say.

Each figure names where it comes from, and how sure it is.
"""

from __future__ import annotations

UNIT_BYTES = 64 << 10
"""In which a message moves within a host, so that several share what they pass. Assumed: fine
enough beside pieces of 512 KiB."""
IDLE_CONNECTIONS = 4096
"""That stay open though nothing moves on them: 4,096 take 0.2 GB. Assumed; NCCL keeps all of them,
of which only an all-to-all of more than some hundred GPUs has so many."""
MOST_FRAMES = 300_000_000
"""Frames of one simulation: six minutes in a ring of neighbours to an hour in an all-to-all over
three tiers (docs/performance.md). Assumed to be as long as anyone waits without having been
told."""
CAPTURE_BYTES = 256 << 20
"""Of a capture, after which it ends: what Wireshark still opens with ease."""
