"""What the packet network has and a topology file does not say: buffers, marks, rings.

Each figure names where it comes from, and how sure it is.
"""

from __future__ import annotations

BUFFER_BYTES = 32_000_000
"""What the ports of a switch share: Broadcom Trident 3, 3.2 Tb/s (product brief BCM56870).
Published; other chips have 16 to 113 MB."""
BUFFER_ALPHA = 1.0
"""A port may have so much of what is free (Choudhury and Hahne, IEEE/ACM ToN 1998; a common default
of Broadcom's and of SONiC's lossy queues, where it is 1 to 8). Assumed."""
MARK_BYTES_PER_BPS = 65 * 1500 / 10e9
"""Bytes that wait above which a packet is marked, for each bit/s of the link: 65 packets of 1,500 B
at 10 Gb/s (Alizadeh et al., DCTCP, SIGCOMM 2010, section 3.5, as deployed there). Published."""
RING_FRAMES = 1024
"""Frames that a process may have at the NIC: a ring of 1,024 descriptors, the default of mlx5 and
ice (Linux, MLX5E_PARAMS_DEFAULT_LOG_SQ_SIZE of 10). Published."""
UNIT_BYTES = 64 << 10
"""In which a message moves within a host, so that several share what they pass. Assumed: fine
enough beside pieces of 512 KiB."""
IDLE_CONNECTIONS = 4096
"""That stay open though nothing moves on them: 4,096 take 0.2 GB. Assumed; NCCL keeps all of them,
of which only an all-to-all of more than some hundred GPUs has so many."""
MOST_FRAMES = 300_000_000
"""Frames of one simulation: some ten minutes to half an hour (docs/performance.md). Assumed to be
as long as anyone waits without having been told."""
CAPTURE_BYTES = 256 << 20
"""Of a capture, after which it ends: what Wireshark still opens with ease."""
