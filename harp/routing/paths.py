"""Candidate paths of flows: all equal-cost paths, or those of a set of source ports.

A set of paths is an array of shape (flows, paths, links) of directed links, -1 beyond a path's end
and throughout a path that does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric, Flows
    from harp.routing.fabric_tiers import Tiers

    Ints = NDArray[np.int64]
    ColumnChooser = Callable[[Ints, Ints, Ints, int], Ints]


def mirrored_paths(fabric: Fabric, shape: Tiers, src: Ints, dst: Ints,
                   column_of: ColumnChooser) -> Ints:
    """Let every flow climb the same columns from both its ends until they meet.

    ``column_of(flows, at, to, columns)`` chooses one of ``columns`` (or -1) for each of the
    ``flows`` that have not met; ``at`` and ``to`` are the nodes they have climbed to. Returns
    shape (flows, links), -1 padded; a flow whose ends do not meet in this way has -1 throughout.
    """
    height = shape.block.shape[0]
    path = np.full((src.size, 2 * height), -1, np.int64)
    at, to = src + len(fabric.switches), dst + len(fabric.switches)
    apart = np.flatnonzero(at != to)
    lost = np.zeros(src.size, np.bool_)
    for climb in range(height):
        ends = np.stack([at[apart], to[apart]])
        columns = int((shape.up[np.unique(ends)] >= 0).sum(axis=1).max(initial=0))
        if not columns:
            break
        column = column_of(apart, ends[0], ends[1], columns)
        up, down = np.where(column >= 0, shape.up[ends, column], -1)
        path[apart, climb], path[apart, -1 - climb] = up, down ^ 1
        at[apart], to[apart] = fabric.link_dst[up], fabric.link_dst[down]
        stuck = (up < 0) | (down < 0)
        lost[apart[stuck]] = True
        apart = apart[~stuck & (at[apart] != to[apart])]
    lost[apart] = True
    path[lost] = -1
    return left_aligned(path)


def equal_cost_paths(fabric: Fabric, src: Ints, dst: Ints, most: int, seed: int = 1) -> Ints:
    """Enumerate each flow's paths from every live port of its NIC; at most ``most``, by chance.

    Returns shape (flows, paths, links); a flow that has no path has -1 throughout.
    """
    table, switches = fabric.next_hops, len(fabric.switches)
    rng = np.random.default_rng(seed)
    port = fabric.endpoint_ports[src]
    flow, nic = np.nonzero((port >= 0) & fabric.link_up[port] & (src != dst)[:, None])
    path = port[flow, nic][:, None].astype(np.int64)
    done: list[tuple[Ints, Ints]] = []
    while flow.size:
        at, to = fabric.link_dst[path[:, -1]].astype(np.int64), dst[flow]
        last = table.down_src[to] == at[:, None]
        arrived = np.flatnonzero(last.any(axis=1))
        end, which = np.nonzero(last[arrived])
        final = table.down[to[arrived[end]], which]
        done.append((flow[arrived[end]], np.column_stack([path[arrived[end]], final])))
        on = np.flatnonzero(~last.any(axis=1))
        row = table.group[to[on]] * switches + at[on]
        ways = table.ptr[row + 1] - table.ptr[row]
        parent = np.repeat(np.arange(on.size), ways)
        within = np.arange(parent.size) - np.repeat(np.cumsum(ways) - ways, ways)
        link = table.links[table.ptr[row[parent]] + within]
        flow, path = flow[on[parent]], np.column_stack([path[on[parent]], link])
        kept = _some_of_each(flow, most, rng)
        flow, path = flow[kept], path[kept]
    width = max((p.shape[1] for _, p in done), default=1)
    flow = np.concatenate([f for f, _ in done]) if done else np.empty(0, np.int64)
    rows = [np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=-1) for _, p in done]
    path = np.concatenate(rows) if rows else np.empty((0, 1), np.int64)
    kept = _some_of_each(flow, most, rng)
    return grouped(src.size, flow[kept], path[kept])


def walked_paths(fabric: Fabric, flows: Flows, port: Ints | None) -> Ints:
    """Walk flows through the switches' own hashing; shape (flows, links), -1 padded."""
    ptr, links = fabric.route(flows, port)
    length = np.diff(ptr)
    path = np.full((length.size, max(1, int(length.max(initial=0)))), -1, np.int64)
    path[np.arange(path.shape[1]) < length[:, None]] = links
    return path


def left_aligned(path: Ints) -> Ints:
    """Move each row's links to the front, keeping their order."""
    order = np.argsort(path < 0, axis=-1, kind="stable")
    return np.take_along_axis(path, order, axis=-1)


def grouped(flows: int, flow: Ints, path: Ints) -> Ints:
    """Stack rows ``path`` of flow ``flow`` into shape (flows, paths, links), -1 padded."""
    order = np.argsort(flow, kind="stable")
    ordered = flow[order]
    place = np.arange(flow.size) - np.searchsorted(ordered, ordered)
    out = np.full((flows, int(place.max(initial=0)) + 1, path.shape[1]), -1, np.int64)
    out[ordered, place] = path[order]
    return out


def _some_of_each(flow: Ints, most: int, rng: np.random.Generator) -> Ints:
    """Choose at most ``most`` rows of each flow at random; return their indices, ascending."""
    if not flow.size or int(np.bincount(flow).max()) <= most:
        return np.arange(flow.size)
    order = np.lexsort([rng.random(flow.size), flow])
    ordered = flow[order]
    place = np.arange(flow.size) - np.searchsorted(ordered, ordered)
    return np.sort(order[place < most])
