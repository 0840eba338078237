"""Keys of the network: the fabric between the hosts, its switches, and a cloud's VPC.

The fabric is a template with a few numbers, or a list of every device and link. Buffers and marks
of switches are for fidelity `packet`. In a VPC several vNICs share one host's cap; single flows,
packets per second and bursts have caps of their own; an overlay adds headers and decides what the
underlay's switches can hash.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Strict, Tag

from sim.schema.base import Count, Flag, Model, Name
from sim.schema.units import Bytes, PacketRate, Period, PositiveBytes, Rate, Seconds

MARK_BYTES_PER_BPS = 65 * 1500 / 10e9
"""65 packets of 1,500 B at 10 Gb/s (Alizadeh et al., DCTCP, SIGCOMM 2010, section 3.5, as deployed
there). Published."""

Alpha = Annotated[float, Strict(), Field(ge=2**-7, le=2**7)]
"""Broadcom's and SONiC's steps are powers of two from 1/128 to 8."""


PAUSE_FRAME_BYTES = 84
PAUSE_RESPONSE_BYTES = 3840
"""Bytes that may leave a port that takes 60 quanta of 512 bits to obey a PAUSE frame (IEEE
802.1Qbb, annex O). Published."""


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
        """Headroom of a link with a longest frame of ``frame_bytes``, headers included."""
        if self.headroom is not None:
            return self.headroom
        return (round(2 * latency_s * bits_per_s / 8) + 2 * frame_bytes + PAUSE_FRAME_BYTES
                + PAUSE_RESPONSE_BYTES)


class Switch(Model):
    """Buffer, marks and pauses of every switch; only fidelity packet has them."""

    buffer: PositiveBytes = 32_000_000
    """Buffer that the ports of a switch share; 32MB is Broadcom's Trident 3 (BCM56870), others have
    16 to 113MB."""
    alpha: Alpha = 1.0
    """A port's queue may grow to this factor times the free buffer, and drops beyond (Choudhury and
    Hahne, IEEE/ACM ToN 1998; 1 to 8 is common)."""
    mark: Bytes | None = None
    """Bytes that wait at a port above which packets get an ECN mark, 0B for none; where not given,
    65 packets of 1,500 B at 10 Gb/s, and in proportion at other rates (DCTCP, SIGCOMM 2010)."""

    acks_first: Flag = False
    """Frames without payload go first at its ports, as where operators give them a class of their
    own; else an ACK waits behind the data that comes by the same port."""
    pfc: Pfc | None = None
    """Switches pause their senders instead of dropping; where not given, they drop."""

    def mark_bytes(self, bits_per_s: float) -> int:
        """Threshold of a port of this rate; 0 marks nothing."""
        return round(MARK_BYTES_PER_BPS * bits_per_s) if self.mark is None else self.mark


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
    """Value of the outer source port: a hash of the inner five-tuple, or (outer) a constant."""


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
    """Traffic that may exceed the host's cap for a while."""
    police: Police | None = None
    """Caps drop what exceeds them, at fidelity packet; elsewhere, and where this is not given, they
    make it wait."""
    mtu: PositiveBytes | None = None
    """Largest IP packet of a vNIC; the fabric's where not given."""
    overlay: Overlay | None = None
    """Encapsulation, if any."""


class Hash(Model):
    """How switches choose among equal paths."""

    function: Literal["crc16", "crc32", "xor", "toeplitz", "linux"] = "crc32"
    """Hash over the five-tuple; linux is a Linux router's, and the only one of fidelity lab."""
    seed: Literal["per-switch", "same"] = "per-switch"
    """One seed for all switches polarises: each tier then repeats the choice of the one below."""


class _Shape(Model):
    rate: Rate | None = None
    """Rate of links between switches; the fastest NIC port's where not given."""
    latency: Seconds = 1e-6
    """Latency of each link."""
    mtu: PositiveBytes = 1500
    """Largest IP packet, unless a VPC says otherwise; 1500B is Ethernet's."""
    hash: Hash = Hash()
    """How switches choose among equal paths."""
    switch: Switch = Switch()
    """Buffer and marks of every switch."""


class SingleSwitch(_Shape):
    """All NIC ports on one switch that never blocks."""

    template: Literal["single-switch"]
    """The kind of fabric."""


class LeafSpine(_Shape):
    """Two tiers: hosts spread evenly over leaves, each leaf on every spine."""

    template: Literal["leaf-spine"]
    """The kind of fabric."""
    leaves: Count
    """Leaf switches."""
    spines: Count
    """Spine switches."""
    links: Count = 1
    """Parallel links between each leaf and spine."""


class Rail(_Shape):
    """Rail-optimised: NIC i of the hosts of a group is on the leaf of rail i."""

    template: Literal["rail"]
    """The kind of fabric."""
    spines: Count
    """Spine switches."""
    links: Count = 1
    """Parallel links between each leaf and spine."""
    hosts_per_leaf: Count
    """Hosts of a group, which shares one leaf a rail."""


class Clos3(_Shape):
    """Three tiers: pods of leaves and aggregation switches, joined by cores."""

    template: Literal["clos3"]
    """The kind of fabric."""
    pods: Count
    """Pods."""
    leaves: Count
    """Leaf switches of each pod."""
    aggs: Count
    """Aggregation switches of each pod."""
    cores: Count
    """Core switches, in one plane for each aggregation switch of a pod."""
    links: Count = 1
    """Parallel links between each leaf and aggregation switch."""


class DualTor(_Shape):
    """Pairs of ToRs: each bonded NIC has one port on each ToR of its pair."""

    template: Literal["dual-tor"]
    """The kind of fabric."""
    pairs: Count
    """Pairs of ToR switches."""
    spines: Count
    """Spine switches."""
    links: Count = 1
    """Parallel links between each ToR and spine."""


class Device(Model):
    """A switch of an explicit fabric."""

    name: Name
    """Name, unlike any other device's or host's."""


class FabricLink(Model):
    """A cable, both directions; an end is a device or a host's port, ``host/nic.port``."""

    source: str = Field(alias="from")
    """One end: a device, or e.g. gn10xp-0/eth0.1 (host, NIC, port; port 0 may be left out)."""
    target: str = Field(alias="to")
    """The other end."""
    rate: Rate | None = None
    """Rate between devices; the fabric's where not given. A host's cable has its NIC's."""
    latency: Seconds | None = None
    """Latency between devices; the fabric's where not given."""
    count: Count = 1
    """Parallel cables between devices."""


class Explicit(_Shape):
    """Every device and link by name."""

    template: Literal["explicit"] = "explicit"
    """The kind of fabric; may be left out."""
    devices: Annotated[tuple[Device, ...], Field(min_length=1)]
    """Switches."""
    links: Annotated[tuple[FabricLink, ...], Field(min_length=1)]
    """Cables between devices, and from hosts' ports to devices."""


def _template(value: Any) -> str | None:
    if not isinstance(value, dict):
        return getattr(value, "template", "explicit")
    if "template" not in value and ("devices" in value or "links" in value):
        return "explicit"
    template = value.get("template")
    return template if template is None else str(template)


Fabric = Annotated[
    Annotated[SingleSwitch, Tag("single-switch")] | Annotated[LeafSpine, Tag("leaf-spine")]
    | Annotated[Rail, Tag("rail")] | Annotated[Clos3, Tag("clos3")]
    | Annotated[DualTor, Tag("dual-tor")] | Annotated[Explicit, Tag("explicit")],
    Discriminator(_template),
]
"""A fabric, identified by its ``template``, which an explicit one may leave out."""
