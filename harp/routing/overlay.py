"""Encapsulation by a virtual network: switches hash the outer header.

A tunnel runs between hosts, so the outer addresses are the hosts', whatever the NICs inside. Only
the outer UDP source port differs between flows. With ``inner`` it is a hash of the inner five-tuple
in 49152-65535, as RFC 7348 section 5 (VXLAN) recommends and RFC 8926 section 3.3 (Geneve) allows;
with ``outer`` it is constant, and all flows between two hosts take one path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from harp.routing import hashes

if TYPE_CHECKING:
    from harp.routing.fabric import Fabric, Flows

Entropy = Literal["inner", "outer"]

VXLAN_PORT = 4789
"""Destination UDP port of VXLAN (IANA)."""

FIRST_HOST_IP = 0xAC100001
"""Host 0's tunnel address, 172.16.0.1."""


def encapsulate(fabric: Fabric, flows: Flows, entropy: Entropy) -> Flows:
    """Replace the five-tuples by those of the outer headers.

    Raises ValueError for an unknown ``entropy``.
    """
    if entropy not in {"inner", "outer"}:
        raise ValueError(f"the outer port holds a hash of 'inner' or 'outer', not {entropy!r}")
    src_port = np.full(len(flows.src), hashes.FIRST_DYNAMIC_PORT, np.int64)
    if entropy == "inner":
        src_port += hashes.flow_hash("crc32", flows.tuples) % hashes.DYNAMIC_PORTS_N
    host_ip = FIRST_HOST_IP + fabric.endpoint_host.astype(np.int64)
    outer = hashes.five_tuples(host_ip[flows.src], host_ip[flows.dst], src_port, VXLAN_PORT)
    return flows._replace(tuples=outer)
