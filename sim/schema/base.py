"""Base of all models of the topology file: frozen, no unknown keys, types in plain words."""

import unicodedata
from typing import Annotated, Any

from annotated_types import Ge, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from sim.schema.input_errors import Problem, listing, show


class Model(BaseModel):
    """A mapping of the file. Keys that it does not know are refused with the nearest right one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            names = [field.alias or name for name, field in cls.model_fields.items()]
            for key in data:
                if key not in names:
                    raise Problem(f"unknown key {show(key)}", path=(key,), found=key,
                                  allowed=listing(names), names=names, at_key=True)
        return data


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]
"""Name of a host group, device, job ...: letters, digits and . _ + -, at most 64 of them."""


def _printable(text: str) -> str:
    """Refuse what would move a terminal's cursor, end a line or turn the direction of writing."""
    for character in text:
        if unicodedata.category(character) in _UNPRINTABLE:
            raise Problem(f"the character {character!a} in {show(text)}", found=text,
                          allowed="text of one line without control characters")
    return text


_UNPRINTABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of control, format and separating characters, and halves of surrogate pairs."""

Line = Annotated[str, AfterValidator(_printable)]
"""Any text of one line."""
Title = Annotated[Line, Field(min_length=1, max_length=100)]
"""A heading of the report: any text of one line."""
Count = Annotated[int, Strict(), Ge(1), Le(1_000_000)]
"""A whole number from 1 to a million."""
Flag = Annotated[bool, Strict()]
"""true or false, as words without quotes."""


def one_of(allowed: str, *words: str) -> WrapValidator:
    """Report one problem for a value that fits no member of a union; pydantic has one for each.

    Problems inside a list keep their own place. ``words`` are suggested for nearly right values.
    """
    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            if isinstance(value, list) and value:
                raise
            raise Problem(f"found {show(value)}", found=value, allowed=allowed,
                          names=words) from None

    return WrapValidator(check)


def _none_or_mapping(value: Any) -> Any:
    if value == "none":
        return None
    if value is None or isinstance(value, dict | Model):
        return value
    raise Problem(f"found {show(value)}", found=value, names=("none",),
                  allowed="none, or a mapping of keys to values")


class NoneWord:
    """Annotation that lets a file say ``none`` where a mapping may be absent."""

    def __get_pydantic_core_schema__(self, source: Any,
                                     handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_none_or_mapping, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema,
                                     handler: GetJsonSchemaHandler) -> dict[str, Any]:
        inner = handler(schema)
        return {"anyOf": [{"const": "none"}, *inner.get("anyOf", [inner])]}
