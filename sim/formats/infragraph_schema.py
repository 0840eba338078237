"""Infrastructure and annotations of InfraGraph 3.1, as its files hold them.

InfraGraph (https://infragraph.dev, Keysight, MIT) describes a cluster as devices with components,
instances of devices, and edges between their components. Names and types of keys are those of its
``infragraph.proto``, version 3.1.0. Its own reader takes unknown keys and negative counts; these
models refuse them, so that a file of another version is seen to be one.

An end of an edge is a component, ``nic[0:2]`` or ``nic[0].port[1]``, of an instance, ``host[3]``;
without brackets all are meant, and in them stands a slice of Python's (``[-1]``, ``[::2]``).
Scheme ``one2one`` joins the first to the first and so on, as far as both go, ``many2many`` each to
each. The schema also has ``ring``, without saying what it joins; InfraGraph's own service refuses
it.
"""

from __future__ import annotations

import re
from itertools import product
from math import prod
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, Strict, model_validator

from sim.schema.base import Line, Model
from sim.schema.input_errors import Problem, listing, show

VERSION = "3.1"
MOST = 1_000_000
"""Largest count of a component or an instance, and most pairs of an edge."""
Number = Annotated[int, Strict(), Field(ge=1, le=MOST)]
Text = Annotated[Line, Field(min_length=1)]
Rate = Annotated[float, Field(gt=0)]
Time = Annotated[float, Field(ge=0)]
Choice = Literal["custom", "device", "cpu", "xpu", "nic", "memory", "port", "switch"]
GIGA = {"gigabits_per_second": 1e9, "gigabytes_per_second": 8e9}
"""Bits/s of each unit of bandwidth."""
SECONDS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PART = re.compile(r"([^\[\].]+)(?:\[((?:-?\d{1,7})?(?::(?:-?\d{1,7})?){0,2})\])?")


class Schema(Model):
    """A mapping of InfraGraph's."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        for key in data if isinstance(data, dict) else ():
            if key not in cls.model_fields:
                raise Problem(f"InfraGraph {VERSION} has no {show(key)} here", path=(key,),
                              found=key, allowed=listing([*cls.model_fields]),
                              names=[*cls.model_fields], at_key=True)
        return data


class Bandwidth(Schema):
    """A rate in one of three units."""

    choice: str | None = None
    gigabits_per_second: Rate | None = None
    gigabytes_per_second: Rate | None = None
    gigatransfers_per_second: Rate | None = None

    @property
    def bits_per_s(self) -> float | None:
        """The rate; None where it is not given, or as transfers of unknown size."""
        return next((value * unit for name, unit in GIGA.items()
                     if (value := getattr(self, name)) is not None), None)


class Latency(Schema):
    """A time in one of three units."""

    choice: str | None = None
    ms: Time | None = None
    us: Time | None = None
    ns: Time | None = None

    @property
    def seconds(self) -> float | None:
        """The time, if it is given."""
        return next((value * unit for name, unit in SECONDS.items()
                     if (value := getattr(self, name)) is not None), None)


class Physical(Schema):
    """Properties of a link."""

    bandwidth: Bandwidth = Bandwidth()
    latency: Latency = Latency()


class Link(Schema):
    """A kind of link, which edges name."""

    name: Text
    description: str = ""
    physical: Physical = Physical()


class Custom(Schema):
    """A component of another kind."""

    type: str = ""


class Component(Schema):
    """Equal parts of a device."""

    name: Text
    description: str = ""
    count: Number
    choice: Choice = "custom"
    custom: Custom | None = None
    device: dict[str, Any] | None = None
    cpu: dict[str, Any] | None = None
    xpu: dict[str, Any] | None = None
    nic: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    port: dict[str, Any] | None = None
    switch: dict[str, Any] | None = None


class DeviceEnd(Schema):
    """An end inside a device."""

    device: Text | None = None
    component: Text


class End(Schema):
    """An end in the infrastructure."""

    instance: Text
    component: Text


Scheme = Literal["one2one", "many2many", "ring"]


class DeviceEdge(Schema):
    """An edge between components of a device."""

    ep1: DeviceEnd
    ep2: DeviceEnd
    scheme: Scheme = "one2one"
    link: Text


class Edge(Schema):
    """An edge between components of instances."""

    ep1: End
    ep2: End
    scheme: Scheme = "one2one"
    link: Text


class Device(Schema):
    """A kind of host or switch."""

    name: Text
    description: str = ""
    components: tuple[Component, ...] = ()
    links: tuple[Link, ...] = ()
    edges: tuple[DeviceEdge, ...] = ()


class Instance(Schema):
    """A device and how often it is there."""

    name: Text
    description: str = ""
    device: Text
    count: Number


class Infrastructure(Schema):
    """A whole file."""

    name: str = ""
    description: str = ""
    devices: Annotated[tuple[Device, ...], Field(min_length=1)]
    links: tuple[Link, ...] = ()
    instances: Annotated[tuple[Instance, ...], Field(min_length=1)]
    edges: tuple[Edge, ...] = ()


class Attribute(Schema):
    """A text by name."""

    attribute: Text
    value: str = ""


class Named(Schema):
    """Attributes of a node or link."""

    name: Text
    attributes: tuple[Attribute, ...] = ()


class Between(Schema):
    """Attributes of an edge."""

    ep1: Text
    ep2: Text
    attributes: tuple[Attribute, ...] = ()


class Annotations(Schema):
    """The separate file of what the graph itself has no place for."""

    nodes: tuple[Named, ...] = ()
    edges: tuple[Between, ...] = ()
    links: tuple[Named, ...] = ()
    graph: tuple[Attribute, ...] = ()


class Part(NamedTuple):
    """One component of a device or instance: its name and number."""

    name: str
    number: int


def parts(text: str, counts: dict[str, int]) -> list[tuple[Part, ...]]:
    """Every component that ``text`` means: ``nic[0:2]``, ``nic[0].port[1]``, ``nic``.

    ``counts`` has the number of each first name. Raises Problem.
    """
    places: list[range] = []
    names: list[str] = []
    for depth, piece in enumerate(text.split(".")):
        match = _PART.fullmatch(piece)
        if match is None:
            raise Problem(f"{show(text)} is no component", found=text,
                          allowed="such as nic, nic[0], nic[0:2] or nic[-1]")
        name, slice_text = match[1], match[2] or ":"
        if depth == 0 and name not in counts:
            raise Problem(f"there is no {show(name)}", found=name, names=[*counts],
                          allowed=listing([*counts]))
        if depth and not re.fullmatch(r"\d+(:\d+(:\d+)?)?", slice_text):
            raise Problem(f"{show(text)} does not say which {name}", found=text,
                          allowed=f"{name}[0]")
        places.append(_numbers(text, slice_text, counts[name] if depth == 0 else MOST))
        names.append(name)
    count = prod(map(len, places))
    if count > MOST:
        raise Problem(f"{show(text)} means {count:,} components", found=text,
                      allowed=f"at most {MOST:,}")
    return [tuple(map(Part, names, numbers)) for numbers in product(*places)]


def _numbers(text: str, slice_text: str, count: int) -> range:
    """Numbers that a slice takes of ``count`` things; raises Problem where some are missing."""
    bounds = [int(bound) if bound else None for bound in slice_text.split(":")]
    if len(bounds) == 1:
        (index,) = bounds
        assert index is not None
        bounds = [index, index + 1 or None]
    if bounds[2:] != [0]:
        found = range(*slice(*bounds).indices(count))
        inside = all(-count <= bound <= count for bound in bounds[:2] if bound is not None)
        if inside and found:
            return found
    raise Problem(f"{show(text)} is out of range", found=text, allowed=f"numbers below {count}")


def pairs(one: list[Any], other: list[Any], scheme: str) -> list[tuple[Any, Any]]:
    """The pairs that an edge joins; raises Problem."""
    if scheme == "many2many":
        if len(one) * len(other) > MOST:
            raise Problem(f"{len(one) * len(other):,} pairs", allowed=f"at most {MOST:,}")
        return list(product(one, other))
    if scheme != "one2one":
        raise Problem(f"the scheme {scheme}", found=scheme, path=("scheme",),
                      allowed="one2one, many2many")
    return list(zip(one, other, strict=False))
