"""The codec of Chakra's files against the protobuf package, byte for byte."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from sim.schema.input_errors import Problem
from sim.traces.chakra_format import (
    KINDS,
    Attribute,
    Metadata,
    Node,
    Values,
    read_trace,
    write_trace,
)

FIELD = descriptor_pb2.FieldDescriptorProto
WHOLE = {"int32": (-2**31, 2**31 - 1), "int64": (-2**63, 2**63 - 1), "uint32": (0, 2**32 - 1),
         "uint64": (0, 2**64 - 1), "sint32": (-2**31, 2**31 - 1), "sint64": (-2**63, 2**63 - 1),
         "fixed32": (0, 2**32 - 1), "fixed64": (0, 2**64 - 1), "sfixed32": (-2**31, 2**31 - 1),
         "sfixed64": (-2**63, 2**63 - 1)}


def schema() -> dict[str, Any]:
    """The messages of mlcommons/chakra's et_def.proto, made anew out of its names and numbers."""
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="c", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, str, bool], oneof: str = "") -> None:
        made = file.message_type.add(name=name)
        if oneof:
            made.oneof_decl.add(name=oneof)
        for field, number, kind, repeated in fields:
            builtin = getattr(FIELD, f"TYPE_{kind.upper()}", None)
            added = made.field.add(
                name=field, number=number,
                label=FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL,
                type=FIELD.TYPE_MESSAGE if builtin is None else builtin)
            if builtin is None:
                added.type_name = f".c.{kind}"
            if oneof and number >= 3:
                added.oneof_index = 0

    for kind in KINDS:
        message(f"{kind}_list", ("values", 1, kind, True))
    values = [(f"{kind}{end}", 3 + 2 * number + place, f"{kind}{end}" if end else kind, False)
              for number, kind in enumerate(KINDS) for place, end in enumerate(("", "_list"))]
    message("Attribute", ("name", 1, "string", False), ("doc_string", 2, "string", False),
            *values, oneof="value")
    message("IOInfo", ("values", 1, "string", False), ("shapes", 2, "string", False),
            ("types", 3, "string", False))
    message("GlobalMetadata", ("version", 1, "string", False), ("attr", 2, "Attribute", True))
    message("Node", ("id", 1, "uint64", False), ("name", 2, "string", False),
            ("type", 3, "int32", False), ("ctrl_deps", 4, "uint64", True),
            ("data_deps", 5, "uint64", True), ("start_time_micros", 6, "uint64", False),
            ("duration_micros", 7, "uint64", False), ("inputs", 8, "IOInfo", False),
            ("outputs", 9, "IOInfo", False), ("attr", 10, "Attribute", True),
            ("later", 900, "string", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {one.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"c.{one.name}"))
            for one in file.message_type}


PROTOBUF = schema()
small = st.text(max_size=6)


def value_of(kind: str) -> st.SearchStrategy[Any]:
    if kind in WHOLE:
        return st.integers(*WHOLE[kind])
    return {"double": st.floats(allow_nan=False), "float": st.floats(allow_nan=False, width=32),
            "bool": st.booleans(), "string": small, "bytes": st.binary(max_size=6)}[kind]


@st.composite
def attributes(draw: st.DrawFn) -> Attribute:
    kind = draw(st.sampled_from(KINDS))
    if draw(st.booleans()):
        return Attribute(draw(small), kind, draw(value_of(kind)), draw(small))
    return Attribute(draw(small), f"{kind}_list",
                     tuple(draw(st.lists(value_of(kind), max_size=4))), draw(small))


ids = st.integers(0, 2**64 - 1)
nodes = st.builds(
    Node, id=ids, name=small, type=st.integers(0, 10), start_us=ids, duration_us=ids,
    ctrl_deps=st.lists(ids, max_size=4).map(tuple), data_deps=st.lists(ids, max_size=4).map(tuple),
    inputs=st.none() | st.builds(Values, small, small, small),
    outputs=st.none() | st.builds(Values, small, small, small),
    attributes=st.lists(attributes(), max_size=3).map(tuple))
metadata = st.builds(Metadata, small, st.lists(attributes(), max_size=2).map(tuple))


def fill_attribute(made: Any, attribute: Attribute) -> None:
    made.name, made.doc_string = attribute.name, attribute.doc
    assert attribute.kind is not None
    if attribute.kind.endswith("_list"):
        getattr(made, attribute.kind).SetInParent()
        getattr(made, attribute.kind).values.extend(attribute.value)
    else:
        setattr(made, attribute.kind, attribute.value)


def by_protobuf(about: Metadata, several: list[Node]) -> bytes:
    first = PROTOBUF["GlobalMetadata"](version=about.version)
    for attribute in about.attributes:
        fill_attribute(first.attr.add(), attribute)
    messages = [first]
    for node in several:
        made = PROTOBUF["Node"](
            id=node.id, name=node.name, type=node.type, ctrl_deps=node.ctrl_deps,
            data_deps=node.data_deps, start_time_micros=node.start_us,
            duration_micros=node.duration_us)
        for name in ("inputs", "outputs"):
            values = getattr(node, name)
            if values is not None:
                getattr(made, name).SetInParent()
                for part in ("values", "shapes", "types"):
                    setattr(getattr(made, name), part, getattr(values, part))
        for attribute in node.attributes:
            fill_attribute(made.attr.add(), attribute)
        messages.append(made)
    framed = b""
    for message in messages:
        content = message.SerializeToString(deterministic=True)
        framed += PROTOBUF["uint64_list"](values=[len(content)]).SerializeToString()[2:] + content
    return framed


@given(metadata, st.lists(nodes.filter(lambda node: node != Node()), max_size=4))
def test_bytes_are_protobufs_and_come_back_as_they_were(about: Metadata,
                                                        several: list[Node]) -> None:
    written = write_trace(about, several)
    assert written == by_protobuf(about, several)
    if about != Metadata():  # a message of length 0 ends the file, by Chakra's own reader
        assert read_trace(written) == (about, several)
        assert read_trace(gzip.compress(written)) == (about, several)


def test_keys_of_a_later_schema_are_kept() -> None:
    made = PROTOBUF["Node"](id=7, name="n", later="what comes")
    content = made.SerializeToString(deterministic=True)
    data = b"\x03\x0a\x01v" + bytes([len(content)]) + content
    about, (node,) = read_trace(data)
    assert (node.id, node.name) == (7, "n")
    assert write_trace(about, [node]) == data


def test_lists_that_are_not_packed_are_read() -> None:
    content = b"\x28\x05\x28\x06"  # data_deps 5 and 6, each with its own key
    _, (node,) = read_trace(b"\x03\x0a\x01v" + bytes([len(content)]) + content)
    assert node.data_deps == (5, 6)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x05\x0a", b"\x80", b"\x02\x0a\x05",
                                  b"\x01\x0f", b"\x03\x0a\x01\xff", b"\x1f\x8b\x08\x00 cut",
                                  b"\xff" * 12])
def test_a_file_that_is_no_trace_is_a_problem(data: bytes) -> None:
    with pytest.raises(Problem):
        read_trace(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_trace_or_a_problem(data: bytes) -> None:
    try:
        about, found = read_trace(data)
    except Problem:
        return
    assert isinstance(about, Metadata)
    assert all(isinstance(node, Node) for node in found)
