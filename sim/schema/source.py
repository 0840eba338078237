"""A YAML file read into nodes that remember their line and column, and models made from them.

The events of PyYAML's parser are composed here rather than by PyYAML, so that depth, size and
aliases are bounded before anything is built, and so that YAML 1.1's traps stay shut: a plain
scalar is null, true, false or a decimal number as in YAML 1.2's core schema, else text (``on`` and
``12:30:00`` are text). Tags are refused; anchors, aliases and ``<<`` merge keys work.

`apply_change` is ``--set key.path=value``: it changes one value before the file is checked. The
path is written as in error messages, ``hosts[0].nics[0].rate``; an entry of a list that has a name
can be given by it, ``scenarios[Horovod+TCP].channels``. The value is YAML, so ``fabric={template:
leaf-spine, leaves: 2, spines: 2}`` works as well. A key that is not there yet is added. Errors of
the new value are those of the file, with the argument in place of file and line.

`read_input` reads a file of bounded size without waiting; every failure is one sentence.
"""

from __future__ import annotations

import errno
import hashlib
import re
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import ValidationError

from harp.nearest import nearest_path
from harp.reading import read_bytes
from sim.schema.input_errors import Problem, TopologyError, holds, key_text, listing, problems, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydantic import BaseModel

    from sim.schema.input_errors import Path


MAX_BYTES = 4 * 1024 * 1024
"""Largest file that is read; 16,384 hosts take a template, not a list."""
MAX_NODES = 200_000
"""Most values of a file once aliases are expanded, so that nested aliases cannot explode."""
MAX_DEPTH = 32
"""Deepest nesting; the schema itself needs 8."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None,
          "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ufffe\uffff]")
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")

AnyModel = TypeVar("AnyModel", bound="BaseModel")


@dataclass(eq=False)
class Node:
    """A value and where it starts; lists and mappings hold further nodes.

    ``size`` and ``height`` count the nodes below and their levels with aliases expanded.
    """

    value: Any
    line: int
    column: int
    size: int = 1
    height: int = 0
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Position of each key of a mapping."""
    origin: str = ""
    """The argument that the value comes from; empty where it stands in the file."""

    def plain(self) -> Any:
        """Return the value as plain Python data."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


class Source:
    """A file that was read: its name, its nodes, and errors that point into it."""

    def __init__(self, file: str, root: Node, sha256: str = "",
                 changes: tuple[str, ...] = (), text: str = "") -> None:
        self.file = file
        self.root = root
        self.sha256 = sha256
        self.changes = changes
        self.text = text

    @classmethod
    def read(cls, path: FilePath, changes: Sequence[str] = ()) -> Source:
        """Read and parse ``path`` and apply ``changes`` to it; raises TopologyError."""
        data = read_input(path, most_bytes=MAX_BYTES, allowed="a YAML file")
        return cls.parse(data, str(path), changes)

    @classmethod
    def parse(cls, data: bytes, file: str, changes: Sequence[str] = ()) -> Source:
        """Parse the bytes of a file that was read before, or elsewhere; raises TopologyError."""
        text = _text(data, file)
        root = _compose(text, file, _Builder.document)
        return cls(file, root, hashlib.sha256(data).hexdigest(), text=text).changed(changes)

    def changed(self, changes: Sequence[str]) -> Source:
        """The same file with further changes; raises TopologyError."""
        root = copy(self.root)
        root.value, root.keys = copy(root.value), copy(root.keys)
        for change in changes:
            apply_change(root, change)
        return Source(self.file, root, self.sha256, (*self.changes, *changes), self.text)

    @property
    def folder(self) -> str:
        """Folder of the file, from which its paths are taken."""
        return str(FilePath(self.file).parent)

    def validate(self, model: type[AnyModel], context: dict[str, Any] | None = None) -> AnyModel:
        """Make a ``model`` of the file; raises TopologyError for its first problem."""
        try:
            return model.model_validate(self.root.plain(), context=context)
        except ValidationError as error:
            raise self.first(problems(error, self.root.plain())) from None

    def first(self, found: list[Problem]) -> TopologyError:
        """Return the error for the earliest of the problems, which counts the others."""
        placed = sorted(((_find(self.root, problem), problem) for problem in found),
                        key=lambda pair: pair[0])
        (line, column, origin), problem = placed[0]
        return TopologyError(origin or self.file, problem, line, column, more=len(found) - 1)


def _find(root: Node, problem: Problem) -> tuple[int, int, str]:
    """Line, column and origin of a problem: of its value, its key, or what should hold it."""
    node, path = root, problem.path
    for depth, part in enumerate(path):
        if problem.at_key and depth == len(path) - 1 and part in node.keys:
            return *node.keys[str(part)], ""
        if not holds(node.value, part):
            break
        node = node.value[part]
    return node.line, node.column, node.origin


def parse_value(text: str, origin: str) -> Node:
    """Nodes of a value that is given in an argument; raises TopologyError."""
    return _compose(text, origin, lambda builder: builder.value(origin))


def _compose(text: str, file: str, compose: Callable[[_Builder], Node]) -> Node:
    """Let ``compose`` build nodes out of YAML; raises TopologyError."""
    try:
        return compose(_Builder(yaml.parse(text, Loader=_LOADER)))
    except _At as error:
        raise TopologyError(file, error.problem, error.line, error.column) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise TopologyError(file, _not_yaml(error.problem), line, column) from None
    except yaml.YAMLError as error:
        raise TopologyError(file, _not_yaml(getattr(error, "reason", None)), 1, 1) from None


def _text(data: bytes, file: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _place(data[: error.start].decode("utf-8", "replace"))
        problem = Problem("a byte that is not UTF-8", found=data[error.start], allowed="UTF-8 text")
        raise TopologyError(file, problem, line, column) from None
    odd = _CONTROL.search(text)
    if odd:
        line, column = _place(text[: odd.start()])
        name = "a NUL byte" if odd[0] == "\0" else f"the control character {odd[0]!r}"
        raise TopologyError(file, Problem(name, found=odd[0], allowed="text"), line, column)
    return text


def _place(before: str) -> tuple[int, int]:
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _not_yaml(reason: str | None) -> Problem:
    return Problem(f"is not YAML: {reason or 'unreadable'}")


class _At(Exception):  # noqa: N818  (it never leaves this module)
    """A problem at a mark of the file."""

    def __init__(self, mark: Any, problem: Problem) -> None:
        super().__init__(problem.says)
        self.problem = problem
        self.line = mark.line + 1
        self.column = mark.column + 1


class _Builder:
    """Composes one document's events into nodes."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, Node | None] = {}
        self._nodes = 0
        self._aliases = False
        self._origin = ""

    def document(self) -> Node:
        next(self._events)  # the stream's start
        start = next(self._events)
        if not isinstance(start, yaml.DocumentStartEvent):
            raise _At(start.start_mark, Problem("the file is empty", allowed="a mapping"))
        first = next(self._events)
        if not isinstance(first, yaml.MappingStartEvent):
            raise _At(first.start_mark, Problem("the file does not start with a mapping",
                                                allowed="keys such as name, hosts, fabric"))
        root = self._node(first, 0, ())
        self._end()
        return root

    def value(self, origin: str) -> Node:
        """Compose a document that may be any value, or nothing; positions mean nothing in it."""
        self._origin = origin
        next(self._events)  # the stream's start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return Node(None, 0, 0, origin=origin)
        root = self._node(next(self._events), 0, ())
        self._end()
        return root

    def _end(self) -> None:
        next(self._events)  # the document's end
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise _At(after.start_mark, Problem("a second document starts here",
                                                allowed="one document a file"))

    def _node(self, event: Any, depth: int, path: Path) -> Node:
        if isinstance(event, yaml.AliasEvent):
            node = self._alias(event, path)
        else:
            node = self._fresh(event, depth, path)
        if depth + node.height > MAX_DEPTH:
            raise _At(event.start_mark, Problem("nested too deeply", path=path,
                                                allowed=f"at most {MAX_DEPTH} levels"))
        return node

    def _count(self, event: Any, nodes: int, path: Path) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            expanded = ", aliases expanded" if self._aliases else ""
            raise _At(event.start_mark, Problem(f"too many values{expanded}", path=path,
                                                allowed=f"at most {MAX_NODES}"))

    def _alias(self, event: Any, path: Path) -> Node:
        self._aliases = True
        if event.anchor not in self._anchors:
            raise _At(event.start_mark, Problem(f"alias {show('*' + event.anchor)} has no anchor",
                                                path=path, found=event.anchor))
        node = self._anchors[event.anchor]
        if node is None:
            raise _At(event.start_mark, Problem(f"alias {show('*' + event.anchor)} holds itself",
                                                path=path, found=event.anchor))
        self._count(event, node.size, path)
        return node

    def _fresh(self, event: Any, depth: int, path: Path) -> Node:
        if event.tag is not None:
            raise _At(event.start_mark, Problem(f"tag {show(event.tag)}", path=path,
                                                found=event.tag, allowed="values without tags"))
        self._count(event, 1, path)
        if event.anchor:
            self._anchors[event.anchor] = None
        line, column = (0, 0) if self._origin else _position(event.start_mark)
        node = Node(None, line, column, origin=self._origin)
        if depth >= MAX_DEPTH:
            node.height = 1
        elif isinstance(event, yaml.MappingStartEvent):
            self._mapping(node, depth, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._sequence(node, depth, path)
        else:
            node.value = _scalar(event.value) if event.implicit[0] else event.value
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _sequence(self, node: Node, depth: int, path: Path) -> None:
        node.value = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            self._hold(node, self._node(event, depth + 1, (*path, len(node.value))))
            node.value.append(self._last)

    def _mapping(self, node: Node, depth: int, path: Path) -> None:
        node.value = {}
        merges = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, path)
            if key == "<<" and event.implicit[0]:
                merges.append((event, self._node(next(self._events), depth + 1, (*path, key))))
                continue
            if key in node.value:
                first = node.keys.get(key, (1, 1))[0]
                raise _At(event.start_mark, Problem(f"key {show(key)} stands twice", found=key,
                                                    path=(*path, key),
                                                    allowed=f"once; the first is on line {first}"))
            if not self._origin:
                node.keys[key] = _position(event.start_mark)
            self._hold(node, self._node(next(self._events), depth + 1, (*path, key)))
            node.value[key] = self._last
        for event, merged in merges:
            self._merge(event, node, merged, path)

    def _hold(self, node: Node, child: Node) -> None:
        node.size += child.size
        node.height = max(node.height, child.height + 1)
        self._last = child

    def _key(self, event: Any, path: Path) -> str:
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
            raise _At(event.start_mark, Problem("a key that is not plain text", path=path,
                                                allowed="a word as key"))
        return str(event.value)

    def _merge(self, event: Any, node: Node, merged: Node, path: Path) -> None:
        """Add what ``<<`` refers to, as far as the mapping does not give it itself."""
        for other in merged.value if isinstance(merged.value, list) else [merged]:
            if not isinstance(other.value, dict):
                raise _At(event.start_mark, Problem("'<<' merges what is not a mapping",
                                                    path=(*path, "<<"), found=other.value,
                                                    allowed="an alias of a mapping, or a list"))
            for key, child in other.value.items():
                if key not in node.value:
                    self._count(event, child.size, path)
                    self._hold(node, child)
                    node.value[key] = child
                    if key in other.keys:
                        node.keys[key] = other.keys[key]


def _position(mark: Any) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\[\]]+)\]")
_CHANGE = re.compile(r"((?:[^=\[\]]|\[[^\[\]]*\])+)=(.*)", re.DOTALL)


def apply_change(root: Node, text: str) -> None:
    """Change the document under ``root`` as ``text`` says; raises TopologyError."""
    origin = f"--set {text}"
    match = _CHANGE.fullmatch(text)
    steps = _steps(match[1]) if match else None
    if match is None or steps is None:
        raise TopologyError(origin, Problem("names no key and value",
                                            allowed="e.g. hosts[0].nics[0].rate=100Gbps"))
    value = parse_value(match[2], origin)
    try:
        _put(root, steps, value)
    except Problem as problem:
        raise TopologyError(origin, problem) from None


def overwritten(keys: Sequence[str]) -> tuple[str, str] | None:
    """The first key of ``--set`` whose value a later one replaces whole, and that one, if any."""
    steps = [_steps(key) or [key] for key in keys]
    return next(((keys[first], keys[later]) for later in range(len(keys)) for first in range(later)
                 if steps[first][:len(steps[later])] == steps[later]), None)


def _steps(path: str) -> list[str] | None:
    """Split a path into keys, indices and names; None where it is not well-formed."""
    steps, end = [], 0
    for match in _STEP.finditer(path):
        if match.start() != end:
            return None
        steps.append(match[1] or match[2])
        end = match.end()
    return steps if steps and end == len(path) else None


def _put(node: Node, steps: list[str], value: Node) -> None:
    """Walk down and replace; what an alias shares with other places is copied on the way."""
    path: Path = ()
    for step, following in pairwise(steps):
        key = _key(node, step, path)
        path = (*path, key)
        child = node.value.get(key) if isinstance(node.value, dict) else node.value[key]
        if child is None:
            if following.isdigit():
                raise Problem(f"is not in the file, so that it has no entry {following}",
                              path=path, allowed=f"{key_text(path)}=[...] for the whole list")
            child = copy(value)
            child.value, child.keys = {}, {}
        else:
            child = copy(child)
            child.value, child.keys = copy(child.value), copy(child.keys)
        node.value[key] = child
        node = child
    key = _key(node, steps[-1], path)
    node.value[key] = value
    node.keys.pop(str(key), None)


def _key(node: Node, step: str, path: Path) -> str | int:
    """Key or index that ``step`` names below ``node``; raises Problem."""
    if isinstance(node.value, dict):
        return step
    where = key_text(path)
    if not isinstance(node.value, list):
        raise Problem(f"{where or step} holds no further keys", path=path, found=step,
                      allowed=f"{where}=... for the value itself")
    names = [str(each.value["name"].value) if isinstance(each.value, dict)
             and "name" in each.value else "" for each in node.value]
    if step in names:
        return names.index(step)
    if step.isascii() and step.isdigit() and len(step) < 7 and int(step) < len(names):
        return int(step)
    known = [name for name in names if name]
    raise Problem(f"{where} has no entry {show(step)}", path=path, found=step, names=known,
                  allowed=listing([f"0 to {len(names) - 1}", *known]) if names else "nothing")


def read_input(path: FilePath, *, most_bytes: int, allowed: str) -> bytes:
    """Bytes of a file; raises TopologyError where it cannot be read or is larger than allowed.

    Args:
        path: the file.
        most_bytes: largest file that is read.
        allowed: what the file should be, for the sentence about a directory.

    """
    file = str(path)
    try:
        return read_bytes(path, most_bytes)
    except IsADirectoryError:
        raise TopologyError(file, Problem("is a directory", allowed=allowed)) from None
    except FileNotFoundError as error:
        near = filter(None, [nearest_path(FilePath(file))])
        raise TopologyError(file, Problem(f"cannot be read: {error.strerror}", found=file,
                                          names=near)) from None
    except (OSError, ValueError) as error:
        if getattr(error, "errno", 0) == errno.EFBIG:
            limit = f"at most {most_bytes >> 20} MiB"
            raise TopologyError(file, Problem("the file is too large", allowed=limit)) from None
        reason = getattr(error, "strerror", None) or str(error)
        raise TopologyError(file, Problem(f"cannot be read: {reason}")) from None
