"""``--set key.path=value``: change one value of a topology file before it is checked.

The path is written as in error messages, ``hosts[0].nics[0].rate``; an entry of a list that has a
name can be given by it, ``scenarios[Horovod+TCP].channels``. The value is YAML, so
``fabric={template: leaf-spine, leaves: 2, spines: 2}`` works as well. A key that is not there yet
is added. What is wrong with the new value is said as of the file, with the argument in place of
file and line.
"""

from __future__ import annotations

import re
from copy import copy
from typing import TYPE_CHECKING

from sim.schema.errors import Problem, TopologyError, key_text, listing, show

if TYPE_CHECKING:
    from sim.schema.errors import Path
    from sim.schema.source import Node

_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\[\]]+)\]")
_CHANGE = re.compile(r"((?:[^=\[\]]|\[[^\[\]]*\])+)=(.*)", re.DOTALL)


def apply_change(root: Node, text: str) -> None:
    """Change the document under ``root`` as ``text`` says; raises TopologyError."""
    from sim.schema.source import parse_value

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
    for step in steps[:-1]:
        key = _key(node, step, path)
        path = (*path, key)
        child = node.value.get(key) if isinstance(node.value, dict) else node.value[key]
        if child is None:
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
