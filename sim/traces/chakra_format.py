"""Files of MLCommons Chakra execution traces (``.et``): bytes to nodes and back.

A file is a sequence of protobuf messages, each after its length as a varint; the first is a
``GlobalMetadata``, all others are ``Node`` (mlcommons/chakra, schema/protobuf/et_def.proto). It may
be packed by gzip; a length of 0 ends it. Numbers and names of fields are those of the schema; the
encoding is that of https://protobuf.dev/programming-guides/encoding. As proto3 has it, a field with
its default (0, "") is absent, but a member of a oneof is there even so. Fields that the schema did
not have are kept as bytes, so what is read and written again is the same file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harp.reading import FileError, unpacked
from sim.schema.input_errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""
MOST_UNPACKED = 1 << 31
"""Largest file, unpacked."""
METADATA, MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLL = range(1, 8)
"""Types of nodes."""
COLLECTIVES = ("all-reduce", "reduce", "all-gather", "gather", "scatter", "broadcast", "all-to-all",
               "reduce-scatter", "reduce-scatter-block", "barrier")
"""``CollectiveCommType``, by number."""

# Members of AttributeProto's oneof, from field 3 on: a value, then a list of such values.
KINDS = ("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
         "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes")
_PACKS = {"double": (FIXED64, "<d"), "float": (FIXED32, "<f"), "fixed32": (FIXED32, "<I"),
          "fixed64": (FIXED64, "<Q"), "sfixed32": (FIXED32, "<i"), "sfixed64": (FIXED64, "<q")}


@dataclass(frozen=True)
class Attribute:
    """A named value, of one of `KINDS` or of a list of one (``int64_list``); None: no value."""

    name: str
    kind: str | None = None
    value: Any = None
    doc: str = ""
    rest: bytes = b""
    """Fields that this schema does not know."""


@dataclass(frozen=True)
class Values:
    """Inputs or outputs of a node, as JSON texts."""

    values: str = ""
    shapes: str = ""
    types: str = ""
    rest: bytes = b""


@dataclass(frozen=True)
class Node:
    """An operation and what it waits for."""

    id: int = 0
    name: str = ""
    type: int = 0
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    inputs: Values | None = None
    outputs: Values | None = None
    attributes: tuple[Attribute, ...] = ()
    rest: bytes = b""

    def get(self, name: str, default: Any = None) -> Any:
        """Value of the attribute called ``name``."""
        return next((one.value for one in self.attributes if one.name == name), default)


@dataclass(frozen=True)
class Metadata:
    """The file's own metadata."""

    version: str = ""
    attributes: tuple[Attribute, ...] = ()
    rest: bytes = b""


# ---- reading

def read_trace(data: bytes) -> tuple[Metadata, list[Node]]:
    """Metadata and nodes of a file; raises Problem with the byte where it is wrong."""
    try:
        messages = _messages(unpacked(data, MOST_UNPACKED))
    except FileError as error:
        raise Problem(str(error)) from None
    first = next(messages, None)
    if first is None:
        raise Problem("is empty", allowed="an execution trace")
    return _metadata(first), [_node(message) for message in messages]


def _messages(data: bytes) -> Iterator[_Reader]:
    reader = _Reader(data, 0, len(data))
    while not reader.done:
        length = reader.varint()
        if length == 0:
            return
        yield reader.part(length)


class _Reader:
    """A part of a file and the place in it."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    @property
    def done(self) -> bool:
        return self.at >= self.end

    def varint(self) -> int:
        value = shift = 0
        while True:
            if self.at >= self.end or shift > 63:
                raise Problem(f"is no execution trace: a number is cut off at byte {self.at}",
                              allowed="a whole .et file")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (1 << 64) - 1
            shift += 7

    def part(self, length: int) -> _Reader:
        if length > self.end - self.at:
            raise Problem(f"is no execution trace, or is cut off: {length} bytes should follow "
                          f"byte {self.at}, and {self.end - self.at} do",
                          allowed="a whole .et file")
        self.at += length
        return _Reader(self.data, self.at - length, self.at)

    def take(self, length: int) -> bytes:
        part = self.part(length)
        return self.data[part.at:part.end]

    def text(self) -> str:
        taken = self.data[self.at:self.end]
        try:
            return taken.decode()
        except UnicodeDecodeError:
            raise Problem(f"is no execution trace: text at byte {self.at} is not UTF-8",
                          allowed="a whole .et file") from None

    def fields(self) -> Iterator[tuple[int, int, Any, bytes]]:
        """Number, wire type, value (a `_Reader` where it has a length) and bytes of each field."""
        while not self.done:
            start = self.at
            key = self.varint()
            wire = key & 7
            if wire == VARINT:
                value: Any = self.varint()
            elif wire == BYTES:
                value = self.part(self.varint())
            elif wire in (FIXED64, FIXED32):
                value = self.take(8 if wire == FIXED64 else 4)
            else:
                raise Problem(f"is no execution trace: wire type {wire} at byte {start}",
                              allowed="a whole .et file")
            yield key >> 3, wire, value, self.data[start:self.at]


def _metadata(reader: _Reader) -> Metadata:
    version, attributes, rest = "", [], b""
    for number, wire, value, raw in reader.fields():
        if (number, wire) == (1, BYTES):
            version = value.text()
        elif (number, wire) == (2, BYTES):
            attributes.append(_attribute(value))
        else:
            rest += raw
    return Metadata(version, tuple(attributes), rest)


_NODE_NUMBERS = {1: "id", 3: "type", 6: "start_us", 7: "duration_us"}
_NODE_LISTS = {4: "ctrl_deps", 5: "data_deps"}
_NODE_VALUES = {8: "inputs", 9: "outputs"}


def _node(reader: _Reader) -> Node:
    found: dict[str, Any] = {"rest": b""}
    several: dict[str, list[Any]] = {"ctrl_deps": [], "data_deps": [], "attributes": []}
    for number, wire, value, raw in reader.fields():
        if number in _NODE_NUMBERS and wire == VARINT:
            found[_NODE_NUMBERS[number]] = value
        elif number in _NODE_LISTS and wire in (BYTES, VARINT):
            several[_NODE_LISTS[number]] += _several(value) if wire == BYTES else (value,)
        elif (number, wire) == (2, BYTES):
            found["name"] = value.text()
        elif number in _NODE_VALUES and wire == BYTES:
            found[_NODE_VALUES[number]] = _values(value)
        elif (number, wire) == (10, BYTES):
            several["attributes"].append(_attribute(value))
        else:
            found["rest"] += raw
    return Node(**found | {name: tuple(values) for name, values in several.items()})


def _several(reader: _Reader) -> tuple[int, ...]:
    numbers = []
    while not reader.done:
        numbers.append(reader.varint())
    return tuple(numbers)


def _values(reader: _Reader) -> Values:
    texts, rest = ["", "", ""], b""
    for number, wire, value, raw in reader.fields():
        if 1 <= number <= 3 and wire == BYTES:
            texts[number - 1] = value.text()
        else:
            rest += raw
    return Values(texts[0], texts[1], texts[2], rest)


def _attribute(reader: _Reader) -> Attribute:
    name = doc = ""
    kind: str | None = None
    value: Any = None
    rest = b""
    for number, wire, given, raw in reader.fields():
        if (number, wire) == (1, BYTES):
            name = given.text()
        elif (number, wire) == (2, BYTES):
            doc = given.text()
        elif 3 <= number < 3 + 2 * len(KINDS):
            base = KINDS[(number - 3) // 2]
            is_list = number % 2 == 0
            kind = f"{base}_list" if is_list else base
            value = _list_of(base, given) if is_list else _scalar(base, wire, given)
        else:
            rest += raw
    return Attribute(name, kind, value, doc, rest)


def _scalar(kind: str, wire: int, given: Any) -> Any:
    if wire != _wire(kind):
        raise Problem(f"is no execution trace: a {kind} with wire type {wire}",
                      allowed="a whole .et file")
    if kind in _PACKS:
        return struct.unpack(_PACKS[kind][1], given)[0]
    if kind == "string":
        return given.text()
    if kind == "bytes":
        return given.data[given.at:given.end]
    return _integer(kind, given)


def _integer(kind: str, value: int) -> int | bool:
    if kind == "bool":
        return bool(value)
    if kind.startswith("sint"):
        return (value >> 1) ^ -(value & 1)
    if kind in ("int32", "int64") and value >> 63:
        return value - (1 << 64)
    return value & 0xFFFFFFFF if kind == "uint32" else value


def _list_of(kind: str, reader: Any) -> tuple[Any, ...]:
    """Values of a list message, packed or not."""
    found: list[Any] = []
    if not isinstance(reader, _Reader):
        raise Problem("is no execution trace: a list without a length", allowed="a whole .et file")
    for number, wire, given, _ in reader.fields():
        if number != 1:
            continue
        if wire == BYTES and kind not in ("string", "bytes"):
            found += _packed(kind, given)
        else:
            found.append(_scalar(kind, wire, given))
    return tuple(found)


def _packed(kind: str, reader: _Reader) -> list[Any]:
    if kind not in _PACKS:
        return [_integer(kind, value) for value in _several(reader)]
    size = 8 if _PACKS[kind][0] == FIXED64 else 4
    found = []
    while not reader.done:
        found.append(struct.unpack(_PACKS[kind][1], reader.take(size))[0])
    return found


# ---- writing

def write_trace(metadata: Metadata, nodes: Sequence[Node]) -> bytes:
    """Bytes of a file, not packed."""
    messages = [_metadata_bytes(metadata), *map(_node_bytes, nodes)]
    return b"".join(_varint(len(message)) + message for message in messages)


def _metadata_bytes(metadata: Metadata) -> bytes:
    return (_text(1, metadata.version)
            + b"".join(_sized(2, _attribute_bytes(one)) for one in metadata.attributes)
            + metadata.rest)


def _node_bytes(node: Node) -> bytes:
    parts = [_number(1, node.id), _text(2, node.name), _number(3, node.type),
             _packed_numbers(4, node.ctrl_deps), _packed_numbers(5, node.data_deps),
             _number(6, node.start_us), _number(7, node.duration_us)]
    for number, values in ((8, node.inputs), (9, node.outputs)):
        if values is not None:
            parts.append(_sized(number, _text(1, values.values) + _text(2, values.shapes)
                                + _text(3, values.types) + values.rest))
    parts += [_sized(10, _attribute_bytes(one)) for one in node.attributes]
    return b"".join([*parts, node.rest])


def _attribute_bytes(attribute: Attribute) -> bytes:
    head = _text(1, attribute.name) + _text(2, attribute.doc)
    if attribute.kind is None:
        return head + attribute.rest
    base = attribute.kind.removesuffix("_list")
    number = 3 + 2 * KINDS.index(base)
    if attribute.kind == base:
        value = _tag(number, _wire(base)) + _value_bytes(base, attribute.value)
    else:
        value = _sized(number + 1, _list_bytes(base, attribute.value))
    return head + value + attribute.rest


def _wire(kind: str) -> int:
    return _PACKS[kind][0] if kind in _PACKS else BYTES if kind in ("string", "bytes") else VARINT


def _value_bytes(kind: str, value: Any) -> bytes:
    if kind in _PACKS:
        packed: bytes = struct.pack(_PACKS[kind][1], value)
        return packed
    if kind in ("string", "bytes"):
        content: bytes = _utf8(value) if kind == "string" else value
        return _varint(len(content)) + content
    if kind.startswith("sint"):
        return _varint(2 * value if value >= 0 else -2 * value - 1)
    return _varint(int(value) & (1 << 64) - 1)


def _list_bytes(kind: str, values: Sequence[Any]) -> bytes:
    content = [_value_bytes(kind, value) for value in values]
    if kind in ("string", "bytes"):
        return b"".join(_tag(1, BYTES) + one for one in content)
    return _sized(1, b"".join(content)) if content else b""


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _number(number: int, value: int) -> bytes:
    return _tag(number, VARINT) + _varint(value) if value else b""


def _text(number: int, value: str) -> bytes:
    return _sized(number, _utf8(value)) if value else b""


def _utf8(text: str) -> bytes:
    return text.encode(errors="replace")  # half a surrogate pair, which names in JSON may have


def _sized(number: int, content: bytes) -> bytes:
    return _tag(number, BYTES) + _varint(len(content)) + content


def _packed_numbers(number: int, values: Sequence[int]) -> bytes:
    return _sized(number, b"".join(map(_varint, values))) if values else b""
