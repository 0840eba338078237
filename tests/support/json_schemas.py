"""Whether data is as a JSON Schema of draft 2020-12 says.

jsonschema is imported at the first use, not with this module: beside check-jsonschema it makes a
grammar of IRIs, which takes some four seconds, and each worker of pytest imports all test modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def validate(data: object, schema: Mapping[str, Any]) -> None:
    """Fail with the error that says most if the data is not as the schema has it."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(schema).iter_errors(data))
    assert error is None, error


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise jsonschema.SchemaError if this is no JSON Schema."""
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema)
