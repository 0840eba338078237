"""JSON of an input file: its data, or one sentence that says where it is wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sim.schema.input_errors import Problem, TopologyError, show

if TYPE_CHECKING:
    from collections.abc import Sequence


def parse_json(text: str | bytes, file: str, *, foreign: bool = False) -> Any:
    """Plain data of a JSON text; raises TopologyError.

    NaN, and a key that stands twice, are mistakes; not so with ``foreign``, in files for which
    other programs have their own rules.
    """
    rules: dict[str, Any] = {} if foreign else {"parse_constant": _no_constant,
                                                "object_pairs_hook": _each_once}
    try:
        return json.loads(text, **rules)
    except Problem as error:
        raise TopologyError(file, error) from None
    except json.JSONDecodeError as error:
        problem = Problem(f"is not JSON: {error.msg}")
        raise TopologyError(file, problem, error.lineno, error.colno) from None
    except (ValueError, RecursionError) as error:
        raise TopologyError(file, Problem(f"is not JSON: {_reason(error)}")) from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else "a number has too many digits"


def _no_constant(name: str) -> float:
    raise Problem(f"is not JSON: {name} is not a number")


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise Problem(f"key {show(key)} stands twice", allowed="each key once")
        made[key] = value
    return made
