"""A job's Chakra execution traces: the operations of each rank, and the groups that they name.

``PREFIX.<rank>.et`` is the trace of a rank, from rank 0 on. If there is only ``PREFIX.et`` or
``PREFIX``, all ranks follow it. A node waits for its data and control dependencies, or with
``deps="data"`` for its data dependencies alone, as in MLCommons' feeder. Some converters name
control parents that are not in the file: these are dropped and counted. A missing data parent is an
error.

A file of SimAI's workload text is read if the prefix is its name (`sim.traces.aicb`).

Groups come from the traces (nodes ``process_group:init``) or from a file in ASTRA-sim's format,
``{"1": [0, 1], "2": [2, 3]}``. A name may mean other ranks in the traces of other ranks, as where
PyTorch splits a group. A collective without a group, or with group "" or "0", spans all ranks.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from sim.schema.input_errors import Problem, TopologyError, listing, show
from sim.schema.json_text import parse_json
from sim.schema.source import read_input
from sim.traces import aicb
from sim.traces.chakra_format import (
    COLL,
    COLLECTIVES,
    COMP,
    MEM_LOAD,
    MEM_STORE,
    METADATA,
    RECV,
    SEND,
    Node,
    read_trace,
)
from sim.traces.job_trace import ALL, JobTrace, Op, named_groups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MOST_BYTES = 1 << 30
MOST_NODES = 1_000_000
"""Nodes of all ranks together."""
MOST_SUMS = {"s": 1e9, "B": 2.0**53, "FLOPs": 2.0**64}
"""Of a rank's operations, by their unit: some thirty years."""
MOST_SHOWN = 20
"""Ranks of a group that a sentence lists."""
RUN = ("all-reduce", "reduce", "all-gather", "broadcast", "all-to-all", "reduce-scatter",
       "reduce-scatter-block", "barrier")
"""Collectives that are simulated."""
Deps = Literal["data", "data+ctrl"]


def load_traces(prefix: Path, *, ranks: int, deps: Deps = "data+ctrl",
                groups: Path | None = None) -> JobTrace:
    """Read the traces of a job of ``ranks`` ranks; raises TopologyError."""
    files = _files(prefix, ranks)
    if len(set(files)) == 1:
        data = read_input(files[0], most_bytes=MOST_BYTES, allowed="an execution trace")
        if data.removeprefix(BOM_UTF8).startswith(aicb.MAGIC):
            return _workload_text(files[0], data, ranks)
    read = {file: _nodes(file) for file in dict.fromkeys(files)}
    total = sum(len(read[file]) for file in files)
    if total > MOST_NODES:
        raise TopologyError(str(prefix), Problem(f"{total:,} nodes", allowed=f"{MOST_NODES:,}"))
    made = {file: _ops(file, nodes, deps) for file, nodes in read.items()}
    named = _named_groups(read, made) if groups is None else _group_file(groups)
    trace = JobTrace(tuple(made[file][0] for file in files),
                     _checked(named, ranks, groups or prefix),
                     sum(made[file][1] for file in files))
    _check_peers(trace, files)
    return trace


def _workload_text(file: Path, data: bytes, ranks: int) -> JobTrace:
    try:
        made = aicb.job_of(data, ranks, MOST_NODES)
        for ops in made.ranks:
            _check_sums(ops)
        return made
    except Problem as problem:
        raise TopologyError(str(file), problem) from None


def _files(prefix: Path, ranks: int) -> list[Path]:
    """File of each rank."""
    if not prefix.name:
        raise TopologyError(str(prefix), Problem(
            "is a folder", allowed="the beginning of the files' names, such as traces/gpt"))
    pattern = re.compile(re.escape(prefix.name) + r"\.(0|[1-9][0-9]{0,5})\.et")
    folder = prefix.parent
    if not folder.is_dir():
        raise TopologyError(str(prefix), Problem(f"there is no folder {str(folder)!r}"))
    found = {int(match[1]): path for path in folder.iterdir()
             if (match := pattern.fullmatch(path.name))}
    if found:
        if sorted(found) != list(range(len(found))):
            missing = next(rank for rank in range(len(found)) if rank not in found)
            raise TopologyError(str(prefix), Problem(
                f"{prefix.name}.{missing}.et is missing", allowed="a file for each rank from 0 on"))
        if len(found) != ranks:
            raise TopologyError(str(prefix), Problem(
                f"traces of {len(found)} ranks for {ranks} GPUs", allowed="one GPU a rank"))
        return [found[rank] for rank in range(ranks)]
    for one in (prefix.with_name(prefix.name + ".et"), prefix):
        if one.is_file():
            return [one] * ranks
    raise TopologyError(str(prefix), Problem(
        "there are no traces of this name", allowed=f"{prefix.name}.0.et, {prefix.name}.1.et ..., "
        f"or {prefix.name}.et for all ranks"))


def _nodes(file: Path) -> list[Node]:
    data = read_input(file, most_bytes=MOST_BYTES, allowed="an execution trace")
    try:
        return read_trace(data)[1]
    except Problem as problem:
        raise TopologyError(str(file), problem) from None


def _ops(file: Path, nodes: Sequence[Node], deps: Deps) -> tuple[tuple[Op, ...], int]:
    """Operations of a file, and the number of control dependencies that were dropped."""
    try:
        after, dropped = _parents(nodes, deps)
        stuck = _in_circle(after)
        if stuck is not None:
            other = deps == "data+ctrl" and _in_circle(_parents(nodes, "data")[0]) is None
            raise Problem(f"node {nodes[stuck].id} ({show(nodes[stuck].name)}) waits for itself, "
                          "in a circle", allowed="--deps data, since control dependencies close "
                          "the circle" if other else "dependencies without circles")
        ops = tuple(_op(node, before) for node, before in zip(nodes, after, strict=True))
        _check_sums(ops)
        return ops, dropped
    except Problem as problem:
        raise TopologyError(str(file), problem) from None


def _check_sums(ops: Sequence[Op]) -> None:
    """Refuse sums for which clocks of whole nanoseconds have no room."""
    for name, unit, total in (("last", "s", sum(op.seconds for op in ops)),
                              ("send", "B", sum(op.nbytes for op in ops)),
                              ("take", "FLOPs", sum(op.flops for op in ops))):
        if total > MOST_SUMS[unit]:
            raise Problem(f"all operations {name} {total:.3g} {unit}",
                          allowed=f"at most {MOST_SUMS[unit]:.3g} {unit} a rank")


def _parents(nodes: Sequence[Node], deps: Deps) -> tuple[list[tuple[int, ...]], int]:
    """For each node the numbers of those that it waits for; and how many were dropped."""
    place = {node.id: number for number, node in enumerate(nodes)}
    if len(place) < len(nodes):
        twice = next(node for number, node in enumerate(nodes) if place[node.id] != number)
        raise Problem(f"two nodes have the id {twice.id}", allowed="each id once")
    after, dropped = [], 0
    for node in nodes:
        parents = []
        for parent in node.data_deps:
            if parent not in place:
                raise Problem(f"node {node.id} ({show(node.name)}) waits for the data of node "
                              f"{parent}, which is not there", allowed="nodes of the same file")
            parents.append(place[parent])
        if deps == "data+ctrl":
            known = [place[parent] for parent in node.ctrl_deps if parent in place]
            dropped += len(node.ctrl_deps) - len(known)
            parents += known
        after.append(tuple(dict.fromkeys(parents)))
    return after, dropped


def _in_circle(after: Sequence[Sequence[int]]) -> int | None:
    """Number of a node that can never begin, or None."""
    waits = [len(before) for before in after]
    followers: list[list[int]] = [[] for _ in after]
    for number, before in enumerate(after):
        for parent in before:
            followers[parent].append(number)
    ready = [number for number, count in enumerate(waits) if count == 0]
    while ready:
        for follower in followers[ready.pop()]:
            waits[follower] -= 1
            if waits[follower] == 0:
                ready.append(follower)
    return next((number for number, count in enumerate(waits) if count), None)


def _op(node: Node, after: tuple[int, ...]) -> Op:
    seconds = node.duration_us * 1e-6
    if node.type == COMP:
        return Op(node.name, "cpu" if node.get("is_cpu_op") else "compute", after, seconds,
                  flops=float(_whole(node, "num_ops", 0)))
    if node.type in (MEM_LOAD, MEM_STORE):
        return Op(node.name, "compute", after, seconds)
    if node.type in (SEND, RECV):
        peer = "comm_dst" if node.type == SEND else "comm_src"
        return Op(node.name, "send" if node.type == SEND else "receive", after, seconds,
                  nbytes=_whole(node, "comm_size", 0 if node.type == RECV else None),
                  peer=_whole(node, peer),
                  tag=_whole(node, "comm_tag", 0))
    if node.type == COLL and (node.get("comm_type") is not None or not node.get("is_cpu_op")):
        return _collective(node, after, seconds)
    if node.type in (METADATA, COLL):  # a CPU's call of a collective, beside the GPU's own node
        return Op(node.name, "none", after)
    raise Problem(f"node {node.id} ({show(node.name)}) has the type {node.type}",
                  found=node.type, allowed="1 to 7: metadata, memory, compute, send, receive, "
                  "collective")


def _collective(node: Node, after: tuple[int, ...], seconds: float) -> Op:
    number = _whole(node, "comm_type")
    name = COLLECTIVES[number] if number < len(COLLECTIVES) else str(number)
    if name not in RUN:
        raise Problem(f"node {node.id} ({show(node.name)}) is a collective of the type {name}",
                      allowed=listing(RUN))
    size = _whole(node, "comm_size", 0) if name == "barrier" else _whole(node, "comm_size")
    return Op(node.name, "collective", after, seconds, nbytes=size, collective=name,
              group=str(node.get("pg_name", "")))


def _whole(node: Node, name: str, default: int | None = None) -> int:
    value = node.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        found = "no" if value is None else f"{show(value)} as"
        raise Problem(f"node {node.id} ({show(node.name)}) has {found} {name}",
                      allowed="a whole number")
    return value


def _named_groups(read: Mapping[Path, Sequence[Node]],
                  made: dict[Path, tuple[tuple[Op, ...], int]]) -> dict[str, Any]:
    """Groups of the nodes ``process_group:init``; an empty list of ranks means all.

    Where files mean other ranks by a name, each meaning becomes a group of its own, also in what
    was ``made`` of the files.
    """
    own = {file: _file_groups(file, nodes) for file, nodes in read.items()}
    found: dict[str, Any] = {}
    several: set[str] = set()
    for named in own.values():
        for name, ranks in named.items():
            if found.setdefault(name, ranks) != ranks and name not in ALL:
                several.add(name)
    for name in several:
        del found[name]
    for file, named in own.items():
        meant = {name: f"{name} of {', '.join(map(str, named[name]))}"
                 for name in several & set(named)}
        found |= {meant[name]: named[name] for name in meant}
        ops, dropped = made[file]
        made[file] = tuple(replace(op, group=meant[op.group]) if op.group in meant else op
                           for op in ops), dropped
    return found


def _file_groups(file: Path, nodes: Sequence[Node]) -> dict[str, list[int]]:
    """Groups that a file names."""
    found: dict[str, list[int]] = {}
    for node in nodes:
        if node.type == METADATA and "process_group:init" in node.name and node.inputs:
            for name, ranks in _groups_of(file, node):
                if found.setdefault(name, ranks) != ranks:
                    raise TopologyError(str(file), Problem(
                        f"the group {show(name)} is {_listed(ranks)} and {_listed(found[name])}",
                        allowed="one meaning of a name, or a file of groups"))
    return found


def _groups_of(file: Path, node: Node) -> list[tuple[str, list[int]]]:
    assert node.inputs is not None
    try:
        return named_groups(node.inputs.values)
    except Problem as problem:
        raise TopologyError(str(file), Problem(f"node {node.id} ({show(node.name)}) {problem.says}",
                                               allowed=problem.allowed)) from None


def _group_file(path: Path) -> dict[str, Any]:
    data = read_input(path, most_bytes=MOST_BYTES, allowed="a file of groups")
    found = parse_json(data, str(path))
    if not isinstance(found, dict):
        raise TopologyError(str(path), Problem("is no file of groups",
                                               allowed='JSON such as {"1": [0, 1]}'))
    return found


def _checked(groups: Mapping[str, Any], ranks: int, file: Path) -> dict[str, tuple[int, ...]]:
    made = {}
    for name, given in groups.items():
        members = list(range(ranks)) if given == [] else given
        right = isinstance(members, list) and all(
            type(rank) is int and 0 <= rank < ranks for rank in members)
        if not right or len(set(members)) < len(members):
            raise TopologyError(str(file), Problem(
                f"the group {show(name)} is "
                f"{_listed(members) if isinstance(members, list) else show(members)}",
                allowed=f"a list of ranks below {ranks}, each once"))
        made[str(name)] = tuple(sorted(members))
    return made


def _check_peers(trace: JobTrace, files: Sequence[Path]) -> None:
    for rank, (ops, file) in enumerate(zip(trace.ranks, files, strict=True)):
        for op in ops:
            problem = _peer_problem(trace, rank, op)
            if problem:
                raise TopologyError(str(file), problem)


def _peer_problem(trace: JobTrace, rank: int, op: Op) -> Problem | None:
    count = len(trace.ranks)
    if op.kind in ("send", "receive") and (op.peer >= count or op.peer == rank):
        return Problem(f"{show(op.name)} of rank {rank} has rank {op.peer} as peer",
                       allowed=f"another rank below {count}")
    if op.kind == "collective" and op.group not in (*ALL, *trace.groups):
        return Problem(f"{show(op.name)} is of the group {show(op.group)}", found=op.group,
                       names=list(trace.groups), allowed=listing([*trace.groups]) or "none is "
                       "named: give a file of groups")
    if op.kind == "collective" and rank not in trace.members(op.group):
        return Problem(f"rank {rank} takes part in {show(op.name)} of the group "
                       f"{show(op.group)}, to which it does not belong",
                       allowed=f"ranks {_listed(trace.members(op.group))}")
    return None


def _listed(members: Sequence[object]) -> str:
    """Members of a group, as far as a sentence has room for them."""
    return ", ".join(map(show, members[:MOST_SHOWN])) + ", ..." * (len(members) > MOST_SHOWN)
