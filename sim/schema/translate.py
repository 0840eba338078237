"""What pydantic found wrong, said in the words of the topology file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sim.schema.errors import Path, Problem, holds, listing, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_TYPES = {"int": "a whole number", "float": "a number", "string": "text", "bool": "true or false",
          "tuple": "a list, in [brackets] or one item a line after dashes",
          "dict": "a mapping of keys to values", "finite_number": "a finite number"}
_TYPES |= {"model": _TYPES["dict"], "model_attributes": _TYPES["dict"], "list": _TYPES["tuple"]}
_BOUNDS = {"greater_than": ("gt", "above {}"), "greater_than_equal": ("ge", "at least {}"),
           "less_than": ("lt", "below {}"), "less_than_equal": ("le", "at most {}"),
           "too_short": ("min_length", "a list of {} or more"),
           "too_long": ("max_length", "a list of at most {}"),
           "string_too_short": ("min_length", "at least {} characters"),
           "string_too_long": ("max_length", "at most {} characters")}


def problems(error: ValidationError, data: Any) -> list[Problem]:
    """One Problem for each error, its path stripped of pydantic's own marks."""
    details = [detail for detail in error.errors(include_url=False) if not _echo(detail)]
    return [_problem(detail, data) for detail in details if not _other_member(detail, details)]


def _other_member(detail: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """Tell a list that is none of a union's words: what is wrong inside it is said elsewhere."""
    return (detail["type"] == "literal_error" and isinstance(detail["input"], list)
            and any(other is not detail and other["loc"][:len(detail["loc"]) - 1]
                    == detail["loc"][:-1] for other in details))


def _echo(detail: ErrorDetails) -> bool:
    """Tell a list that is short only because its items were refused, which is said elsewhere."""
    return (detail["type"] == "too_short"
            and len(detail["input"]) >= detail["ctx"]["min_length"])


def _problem(detail: ErrorDetails, data: Any) -> Problem:
    kind = detail["type"]
    context = detail.get("ctx", {})
    path = _path(detail, data)
    cause = context.get("error")
    if isinstance(cause, Problem):
        return cause.under(*path)
    say = _SENTENCES.get(kind)
    if say is not None:
        return say(detail["input"], context, path)
    if kind in _BOUNDS:
        name, clause = _BOUNDS[kind]
        bound = context[name]
        whole = int(bound) if bound == int(bound) else bound
        return Problem(f"found {show(detail['input'])}", path=path, found=detail["input"],
                       allowed=clause.format(whole))
    return _wrong_type(detail, path)


def _wrong_type(detail: ErrorDetails, path: Path) -> Problem:
    kind = detail["type"].removesuffix("_type").removesuffix("_parsing")
    wanted = _TYPES.get(kind, detail["msg"])
    return Problem(f"found {show(detail['input'])}", path=path, found=detail["input"],
                   allowed=wanted)


def _missing(_found: Any, _context: Any, path: Path) -> Problem:
    return Problem("is missing and has no default", path=path)


def _choice(found: Any, context: Any, path: Path) -> Problem:
    expected = context.get("expected") or context["expected_tags"]
    names = [name.strip("'") for name in re.findall(r"'[^']*'|\d+", expected)]
    return Problem(f"found {show(found)}", path=path, found=found,
                   allowed=listing(names), names=names)


def _tag(found: Any, context: Any, path: Path) -> Problem:
    name = _tag_key(context)
    return _choice(found.get(name), context, (*path, name))


def _no_tag(found: Any, context: Any, path: Path) -> Problem:
    if not isinstance(found, dict):
        return Problem(f"found {show(found)}", path=path, found=found, allowed=_TYPES["dict"])
    return _missing(found, context, (*path, _tag_key(context)))


def _tag_key(context: Any) -> str:
    """Key that tells a union's members apart; pydantic writes ``'kind'`` or ``_template()``."""
    return str(context["discriminator"].strip("'_()"))


def _pattern(found: Any, _context: Any, path: Path) -> Problem:
    return Problem(f"found {show(found)}", path=path, found=found,
                   allowed="letters, digits and . _ + -, at most 64, the first a letter or digit")


_SENTENCES: dict[str, Callable[[Any, Any, Path], Problem]] = {
    "missing": _missing, "literal_error": _choice, "union_tag_invalid": _tag,
    "union_tag_not_found": _no_tag, "string_pattern_mismatch": _pattern,
}


def _path(detail: ErrorDetails, data: Any) -> Path:
    """Location without the tags of unions, which are no keys of the file."""
    path: list[str | int] = []
    last = len(detail["loc"]) - 1
    for index, part in enumerate(detail["loc"]):
        if holds(data, part):
            data = data[part]
        elif not (index == last and detail["type"] == "missing"):
            continue
        path.append(part)
    return tuple(path)
