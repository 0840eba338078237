"""The fabric between the hosts: a template with a few numbers, or every device and link by name."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from sim.schema.base import Count, Model, Name
from sim.schema.switches import Switch
from sim.schema.units import PositiveBytes, Rate, Seconds


class Hash(Model):
    """How switches choose among equal paths."""

    function: Literal["crc16", "crc32", "xor", "toeplitz", "linux"] = "crc32"
    """Hash over the five-tuple; linux is a Linux router's, and the only one of fidelity lab."""
    seed: Literal["per-switch", "same"] = "per-switch"
    """One seed for all switches polarises: each tier then repeats the choice of the one below."""


class _Fabric(Model):
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


class SingleSwitch(_Fabric):
    """All NIC ports on one switch that never blocks."""

    template: Literal["single-switch"]
    """The kind of fabric."""


class LeafSpine(_Fabric):
    """Two tiers: hosts spread evenly over leaves, each leaf on every spine."""

    template: Literal["leaf-spine"]
    """The kind of fabric."""
    leaves: Count
    """Leaf switches."""
    spines: Count
    """Spine switches."""
    links: Count = 1
    """Parallel links between each leaf and spine."""


class Rail(_Fabric):
    """Rail-optimised: NIC i of the hosts of a group is on the leaf of rail i."""

    template: Literal["rail"]
    """The kind of fabric."""
    spines: Count
    """Spine switches."""
    links: Count = 1
    """Parallel links between each leaf and spine."""
    hosts_per_leaf: Count
    """Hosts of a group, which shares one leaf a rail."""


class Clos3(_Fabric):
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


class DualTor(_Fabric):
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


class Explicit(_Fabric):
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
"""A fabric, told by its ``template``, which an explicit one may leave out."""
