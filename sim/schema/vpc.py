"""The VPC: what a cloud's virtual network imposes on each host.

Several vNICs share one host's cap; single flows, packets per second and bursts have caps of their
own; an overlay adds headers and decides what the underlay's switches can hash.
"""

from typing import Literal

from sim.schema.base import Count, Model
from sim.schema.units import Bytes, PacketRate, Period, PositiveBytes, Rate


class Burst(Model):
    """A token bucket: ``rate`` while ``bucket`` lasts, then the host's cap, at which it refills."""

    rate: Rate
    """Rate while tokens last."""
    bucket: PositiveBytes
    """Bytes that may be sent beyond the host's cap."""


class Police(Model):
    """Caps drop what exceeds them instead of making it wait (a policer: RFC 2697)."""

    burst: Period = 5e-3
    """Time at its rate for which the bucket of a cap holds tokens; 5 ms is Juniper's rule for
    policers."""


class Overlay(Model):
    """Encapsulation of tenants' packets, e.g. VXLAN."""

    headers: Bytes = 50
    """Bytes that each packet gains; 50 B is VXLAN over IPv4 (RFC 7348)."""
    hash: Literal["inner", "outer"] = "inner"
    """What the outer source port carries: a hash of the inner five-tuple, or (outer) a constant."""


class Vpc(Model):
    """Limits per host; what is not given does not limit."""

    vnics: Count
    """Virtual NICs that share the host."""
    vnic_rate: Rate | None = None
    """Cap of one vNIC."""
    host_rate: Rate | None = None
    """Cap that all vNICs of a host share, per direction."""
    flow_rate: Rate | None = None
    """Cap of one five-tuple."""
    packet_rate: PacketRate | None = None
    """Packets/s of a host, per direction."""
    burst: Burst | None = None
    """What may exceed the host's cap for a while."""
    police: Police | None = None
    """Caps drop what exceeds them, at fidelity packet; elsewhere, and where this is not given, they
    make it wait."""
    mtu: PositiveBytes | None = None
    """Largest IP packet of a vNIC; the fabric's where not given."""
    overlay: Overlay | None = None
    """Encapsulation, if any."""
