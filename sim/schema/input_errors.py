"""Errors of input files: position, value found, allowed values, and the nearest known name.

A validator raises a `Problem`, which knows only its own corner of the file. The loader adds the
file and the position and raises a `TopologyError`, whose text is the one line that the user reads::

    x.yaml:12:12: scenarios[0].stack: 'kernel-tpc' is not a known stack; allowed: kernel-tcp, rdma;
    did you mean 'kernel-tcp'?

Commands wrap their work in `exit_on_error`, so that a bad file ends each of them in the same way.

`problems` translates pydantic's errors into Problems in the words of the topology file.
"""

from __future__ import annotations

import difflib
import re
import sys
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from harp.reading import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


Path = tuple[str | int, ...]
"""Keys and list indices from the top of the file, e.g. ("scenarios", 0, "stack")."""

_SHOWN_CHARACTERS = 60
_SHOWN_NAMES = 40
_SEARCHED_NAMES = 10_000


class Problem(ValueError):  # noqa: N818  (the user reads TopologyError)
    """One thing that is wrong, relative to the value that is being looked at.

    ``path`` leads from that value to the fault, ``says`` is the clause that names what was found,
    ``allowed`` what may stand there instead. The right texts ``names`` are searched for the one
    nearest to ``found`` only when the error is printed: a file may hold thousands of problems. With
    ``at_key`` the fault is the key itself rather than its value.
    """

    def __init__(self, says: str, *, path: Path = (), found: object = None, allowed: str = "",
                 names: Iterable[str] = (), at_key: bool = False) -> None:
        super().__init__(says)
        self.says = says
        self.path = path
        self.found = found
        self.allowed = allowed
        self.names = names
        self.at_key = at_key

    def under(self, *path: str | int) -> Problem:
        """Return the same problem as seen from ``path`` further up."""
        return Problem(self.says, path=path + self.path, found=self.found, allowed=self.allowed,
                       names=self.names, at_key=self.at_key)


def _come_back(kind: type[TopologyError], state: dict[str, Any]) -> TopologyError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    return error


class TopologyError(ValueError):
    """A file that cannot be used; ``str`` gives the sentence for the user.

    ``line`` and ``column`` count from 1 and are 0 where the file as a whole is at fault; ``key`` is
    the path as text (``hosts[0].nics[1].rate``); ``more`` counts further problems in the file.
    """

    def __init__(self, file: str, problem: Problem, line: int = 0, column: int = 0,
                 more: int = 0) -> None:
        self.file = file
        self.line = line
        self.column = column
        self.key = key_text(problem.path)
        self.found = problem.found
        self.says = problem.says
        self.allowed = problem.allowed
        self.nearest = nearest(problem.found, problem.names)
        self.more = more
        self.sentence = self._sentence()
        super().__init__(file, problem, line, column, more)  # simpy makes an error again of these

    def __str__(self) -> str:
        return self.sentence

    def __reduce__(self) -> tuple[Any, ...]:
        """Come back whole from the process of a worker."""
        return _come_back, (type(self), self.__dict__)

    def _sentence(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        clauses = [self.says]
        if self.allowed:
            clauses.append(f"allowed: {self.allowed}")
        if self.nearest is not None:
            clauses.append(f"did you mean {self.nearest!r}?")
        if self.more:
            clauses.append(f"and {self.more} more problem{'s' if self.more > 1 else ''}")
        return ": ".join(filter(None, [where, self.key, "; ".join(clauses)]))


def key_text(path: Path) -> str:
    """Path as the user writes it: ``scenarios[0].light.LIGHT_INTRA_SIZE``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[\w+-]{1,60}", part):
            text += f".{part}"
        else:
            text += f"[{show(part)}]"
    return text.removeprefix(".")


def holds(value: object, part: str | int) -> bool:
    """Whether one step of a path leads from a list or mapping to a value inside it."""
    if isinstance(value, list):
        return isinstance(part, int) and 0 <= part < len(value)
    return isinstance(value, dict) and part in value


def show(value: object) -> str:
    """Say what was found, short enough for one line and safe for a terminal."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and len(value) > _SHOWN_CHARACTERS:
        return repr(value[:_SHOWN_CHARACTERS]) + "..."
    return ascii(value) if not isinstance(value, str) else repr(value)


def nearest(found: object, names: Iterable[str]) -> str | None:
    """Find the valid name that ``found`` was likely meant to be, or None."""
    if not isinstance(found, str):
        return None
    folded: dict[str, str] = {}
    for name in islice(names, _SEARCHED_NAMES):
        folded.setdefault(name.lower(), name)
    close = difflib.get_close_matches(found[:_SHOWN_CHARACTERS].lower(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def listing(names: Collection[str]) -> str:
    """Names for the ``allowed`` clause: a long list is cut, a name with a comma is quoted."""
    rest = f", ... ({len(names)} in all)" if len(names) > _SHOWN_NAMES else ""
    shown = (show(name) if "," in name else name for name in islice(names, _SHOWN_NAMES))
    return ", ".join(shown) + rest


def unknown(what: str, found: str, names: Collection[str], path: Path = ()) -> Problem:
    """Describe a reference to a ``what`` (stack, model, fault ...) that does not exist."""
    return Problem(f"{show(found)} is not a known {what}", path=path, found=found, names=names,
                   allowed=listing(names) or f"none, for this file has no {what}")


def missing(name: str, given: Any, path: Path = ()) -> Problem:
    """Describe a key that a mapping lacks; one that is spelt nearly so is named."""
    keys = [key for key in given if isinstance(key, str)] if isinstance(given, dict) else []
    near = nearest(name, keys)
    there = f", but {show(near)} is there" if near is not None else ""
    return Problem(f"is missing and has no default{there}", path=(*path, name))


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End the command with status 2 and one sentence on stderr when a file cannot be used."""
    try:
        yield
    except TopologyError as error:
        _exit(error)


def _exit(error: TopologyError) -> NoReturn:
    text = f"error: {printable(str(error))}\n"
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))
    raise SystemExit(2) from None


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
    """Whether it is a list where a union has words: another error names the mistake inside."""
    return (detail["type"] == "literal_error" and isinstance(detail["input"], list)
            and any(other is not detail and other["loc"][:len(detail["loc"]) - 1]
                    == detail["loc"][:-1] for other in details))


def _echo(detail: ErrorDetails) -> bool:
    """Whether a list is short only because its items were refused, which other errors say."""
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


def _missing(found: Any, _context: Any, path: Path) -> Problem:
    return missing(str(path[-1]), found, path[:-1])


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
    """Key that identifies a union's member; pydantic writes ``'kind'`` or ``_template()``."""
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
