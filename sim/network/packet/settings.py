"""What the packet network has and a topology file does not say: buffers, marks, rings.

Each figure names where it comes from, and how sure it is.
"""

from __future__ import annotations

BUFFER_BYTES = 4 << 20
"""What may wait at a switch's port. A shared buffer of 32 MB (Broadcom Trident 3, 3.2 Tb/s: product
brief BCM56870) gives a port that is congested alone at most half under a dynamic threshold of 1
(Choudhury and Hahne, IEEE/ACM ToN 1998), and less where several are. Assumed: an eighth of it."""
MARK_BYTES_PER_BPS = 65 * 1500 / 10e9
"""Bytes that wait above which a packet is marked, for each bit/s of the link: 65 packets of 1,500 B
at 10 Gb/s (Alizadeh et al., DCTCP, SIGCOMM 2010, section 3.5, as deployed there). Published."""
RING_FRAMES = 1024
"""Frames that a process may have at the NIC: a ring of 1,024 descriptors, the default of mlx5 and
ice (Linux, MLX5E_PARAMS_DEFAULT_LOG_SQ_SIZE of 10). Published."""
UNIT_BYTES = 64 << 10
"""In which a message moves within a host, so that several share what they pass. Assumed: fine
enough beside pieces of 512 KiB."""
