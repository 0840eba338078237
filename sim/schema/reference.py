"""The topology file's keys for machines (JSON Schema) and for readers (tables), from the models.

The meaning of a key is the docstring under the model's field. It is read from the source only here,
so that loading a file takes no time for it.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from sim.schema.base import Model
from sim.schema.parameters import Parameter
from sim.schema.topology_model import Topology

Schema = dict[str, Any]

_BOUNDS = (("from", "minimum"), ("above", "exclusiveMinimum"), ("to", "maximum"),
           ("below", "exclusiveMaximum"))
_TABLE = re.compile(r"(<!-- keys of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def json_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a topology file, every key with its meaning."""
    schema = _named(Topology.model_json_schema(by_alias=True))
    models = {model.__name__: model for model in _models(Model)}
    for part in (schema, *schema["$defs"].values()):
        model = models[part["title"]]
        docs = _field_docs(model)
        defaults = model.model_construct().model_dump(mode="json", by_alias=True)
        for key, value in part["properties"].items():
            value.pop("title", None)
            value["description"] = docs[key]
            if "default" in value:
                value["default"] = defaults[key]
    schema["$defs"] |= {name: _figure(part) for name, part in schema["$defs"].items()
                        if issubclass(models[name], Parameter)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _figure(part: Schema) -> Schema:
    """Let a parameter also stand as its plain value, as a topology file may have it."""
    value = part["properties"]["value"]
    return {"anyOf": [{key: value[key] for key in value if key != "description"}, part]}


def _named(schema: Schema) -> Schema:
    """Name each definition after its model, where pydantic spells out a generic's arguments."""
    text = json.dumps(schema)
    for key, part in schema["$defs"].items():
        text = text.replace(f'"{key}"', f'"{part["title"]}"')
        text = text.replace(f'"#/$defs/{key}"', f'"#/$defs/{part["title"]}"')
    named: Schema = json.loads(text, parse_float=_number)
    return named


def _number(text: str) -> float:
    """Read 1.0 as 1: versions of pydantic differ in which of them they print."""
    return int(float(text)) if float(text).is_integer() else float(text)


def _models(root: type[Model]) -> Iterator[type[Model]]:
    """Models of this room; others' files have some of the same names."""
    room = __name__.rpartition(".")[0]
    for model in root.__subclasses__():
        if model.__module__.startswith(f"{room}."):
            yield model
        yield from _models(model)


def _field_docs(model: type[Model]) -> dict[str, str]:
    """Meaning of each key of a model, its bases' included."""
    docs: dict[str, str] = {}
    origin = model.__pydantic_generic_metadata__["origin"] or model
    for cls in reversed(origin.__mro__):
        if issubclass(cls, Model) and cls is not Model:
            docs |= _own_docs(cls)
    return {field.alias or name: docs[name] for name, field in model.model_fields.items()}


def _own_docs(cls: type[Model]) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    pairs = zip(body.body, body.body[1:], strict=False)
    return {field.target.id: inspect.cleandoc(text.value.value)
            for field, text in pairs
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)}


def fill(text: str) -> str:
    """Return Markdown, each table from ``<!-- keys of Model -->`` to ``<!-- end -->`` made anew."""
    schema = json_schema()
    parts = {"Topology": schema, **schema["$defs"]}
    return _TABLE.sub(lambda match: match[1] + _table(parts[match[2]]) + match[3], text)


def _table(part: Schema) -> str:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    mapping = next(each for each in part.get("anyOf", [part]) if "properties" in each)
    required = mapping.get("required", [])
    keys = sorted(mapping["properties"], key=lambda key: key not in required)
    for key in keys:
        value = mapping["properties"][key]
        default = "required" if key in required else _default(value)
        meaning = " ".join(value["description"].split()).replace("``", "`").replace("|", "\\|")
        rows.append(f"| `{key}` | {_words(value)} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _default(value: Schema) -> str:
    default = value.get("default")
    return "" if default in (None, "", [], {}) else f"`{_inline(default)}`"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_inline(each)}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(value: Schema) -> str:
    """The allowed values in a few words."""
    choices = value.get("anyOf") or value.get("oneOf")
    if choices:
        words = [_words(each) for each in choices if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        figure = name.removesuffix("Parameter")
        return f"[{name}](#{name.lower()})" if figure == name else f"[{figure}](#figure)"
    if "const" in value or "enum" in value:
        return ", ".join(f"`{each}`" for each in value.get("enum", [value.get("const")]))
    if "examples" in value:
        return "e.g. " + ", ".join(f"`{each}`" for each in value["examples"])
    return _plain_words(value)


def _plain_words(value: Schema) -> str:
    kind = value["type"]
    if kind == "array":
        return f"list of {_words(value['items'])}"
    if kind == "object":
        return f"names, each with {_words(value['additionalProperties'])}"
    words = {"string": "name" if "pattern" in value else "text", "integer": "whole number",
             "boolean": "`true`, `false`"}
    bounds = [f" {word} {value[bound]}" for word, bound in _BOUNDS if bound in value]
    return words.get(kind, str(kind)) + "".join(bounds)
