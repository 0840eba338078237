"""Draw a fabric with how loaded its links are: hosts below, a row of switches for each tier.

A cable is drawn once, by the busier of its two directions: grey where nothing crosses it, blue up
to its capacity, orange and vermilion where flows want more than it carries. The number beside an
overloaded cable is that load: 2 means that its flows get half the rate that they want. A cable
that is down in either direction is dashed, with a cross.

>>> from matplotlib.figure import Figure
>>> from harp.routing.templates import Endpoints, leaf_spine
>>> fabric = leaf_spine(Endpoints.uniform(hosts=4), leaves=2, spines=2)
>>> ptr, links = fabric.route(fabric.flows([0, 1], [2, 3], [50000, 50001]))
>>> drawing = Figure()
>>> draw_fabric(drawing.subplots(), fabric, route_loads(fabric, ptr, links, 100e9))
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from harp.routing.fabric_tiers import tiers
from sim.report.panels import BLACK, BLUE, ORANGE, VERMILION, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray

    from harp.routing.fabric import Fabric

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

IDLE = "#c4c4c4"
CLASSES = (
    ("idle", IDLE, 0.8, 0.0),
    ("up to capacity", BLUE, 1.8, 1.0),
    ("up to twice its capacity", ORANGE, 2.8, 2.0),
    ("more than twice", VERMILION, 3.8, np.inf),
)
"""Name, colour and line width of a cable, and the largest load of each class."""

ROUNDING = 1e-6
"""Loads that exceed a class by less belong to it: sums of shares are not exact."""

MOST_LABELS = 24
"""Nodes of one row that get their names; those of longer rows are dots."""
MOST_WHOLE_NAMES = 8
"""Nodes of one row that get their whole names."""


def route_loads(fabric: Fabric, ptr: ArrayLike, links: ArrayLike, demand_bps: ArrayLike,
                share: ArrayLike = 1.0) -> Floats:
    """Demand over capacity of each directed link, shape (links,).

    ``ptr`` and ``links`` are routes as ``fabric.route`` returns them, ``demand_bps`` what each flow
    wants and ``share`` the part of it that crosses each entry (``fabric.route_spray``).
    """
    hops = np.diff(np.asarray(ptr))
    wanted = np.repeat(np.broadcast_to(np.asarray(demand_bps, np.float64), hops.shape), hops)
    total = np.bincount(np.asarray(links), wanted * np.asarray(share), len(fabric.link_bps))
    return np.asarray(total / fabric.link_bps)


def draw_fabric(axes: Axes, fabric: Fabric, load: ArrayLike | None = None, *, title: str = "",
                legend: bool = True) -> None:
    """Draw ``fabric`` on ``axes``.

    Args:
        axes: they lose their frame.
        fabric: some dozens of endpoints at most, or the names no longer fit.
        load: demand over capacity of each directed link; nothing where not given.
        title: a sentence above the drawing.
        legend: say below the drawing what the colours mean.

    """
    place = positions(fabric)
    busier = cable_loads(fabric, np.zeros(len(fabric.link_bps)) if load is None else load)
    up = fabric.link_up[0::2] & fabric.link_up[1::2]
    ends = np.stack([place[fabric.link_src[0::2]], place[fabric.link_dst[0::2]]], axis=1)
    _cables(axes, ends, busier, up)
    _nodes(axes, fabric, place)
    axes.set_axis_off()
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.55, place[:, 1].max() + 0.35)
    if title:
        axes.set_title(literal(title), loc="left", fontsize=10.5)
    if legend:
        _legend(axes, busier, up)


def cable_loads(fabric: Fabric, load: ArrayLike) -> Floats:
    """Load of the busier direction of each cable, shape (links / 2,)."""
    loads = np.asarray(load, np.float64)
    if loads.shape != fabric.link_bps.shape:
        raise ValueError(f"a fabric of {len(fabric.link_bps)} links has as many loads, "
                         f"not an array of shape {loads.shape}")
    return np.asarray(loads.reshape(-1, 2).max(axis=1))


def positions(fabric: Fabric) -> Floats:
    """Place of each node in the drawing, shape (nodes, 2): x from 0 to 1, y its tier.

    Nodes of a row stand evenly, in the order of what hangs below them.
    """
    tier = tiers(fabric).tier
    place = np.zeros((len(tier), 2))
    place[:, 1] = tier
    for row in range(int(tier.max()) + 1):
        members = np.flatnonzero(tier == row)
        order = members
        if row:
            below = (tier[fabric.link_src] == row - 1) & (tier[fabric.link_dst] == row)
            near, far = fabric.link_src[below], fabric.link_dst[below]
            count = np.maximum(np.bincount(far, minlength=len(tier)), 1)
            middle = np.bincount(far, place[near, 0], len(tier)) / count
            order = members[np.lexsort([members, middle[members].round(6)])]
        place[order, 0] = (np.arange(len(order)) + 0.5) / len(order)
    return place


def _cables(axes: Axes, ends: Floats, load: Floats, up: NDArray[np.bool_]) -> None:
    """Draw idle cables first, so that the loaded ones lie on top."""
    from matplotlib.collections import LineCollection

    level = _class(load)
    for number, (_, colour, width, _) in enumerate(CLASSES):
        chosen = ends[(level == number) & up]
        axes.add_collection(LineCollection(list(chosen), colors=colour, linewidths=width,
                                           zorder=1 + 0.1 * number, capstyle="round"))
    for number in np.flatnonzero((level > 1) & up).tolist():
        # Low, where the cables of one switch have parted but have not yet met others.
        low, high = ends[number][np.argsort(ends[number][:, 1])]
        x, y = low + (high - low) * 0.28
        frame = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": CLASSES[level[number]][1]}
        axes.text(x, y, f"{load[number]:.3g}", fontsize=8, ha="center", va="center", zorder=3,
                  bbox=frame)
    down = ends[~up]
    axes.add_collection(LineCollection(list(down), colors=BLACK, linewidths=1.2, linestyles="--",
                                       zorder=2))
    middle = down.mean(axis=1)
    axes.plot(middle[:, 0], middle[:, 1], linestyle="none", marker="x", color=BLACK, markersize=9,
              markeredgewidth=2, zorder=3)


def _class(load: Floats) -> Ints:
    return np.searchsorted([most for *_, most in CLASSES], load - ROUNDING * (load > 0))


def _nodes(axes: Axes, fabric: Fabric, place: Floats) -> None:
    """Write the names of a row in boxes; of a long row only what differs, or only dots."""
    switches = len(fabric.switches)
    for row in np.unique(place[:, 1]):
        members = np.flatnonzero(place[:, 1] == row)
        if len(members) > MOST_LABELS:
            axes.scatter(place[members, 0], place[members, 1], s=12, zorder=4, facecolor="white",
                         edgecolor=BLACK, linewidth=0.8)
            continue
        names, common = _short([fabric.node_name(node) for node in members.tolist()])
        if common:
            axes.text(-0.03, row, literal(common), fontsize=8, ha="right", va="center")
        style = "square" if members[0] < switches else "round"
        frame = {"boxstyle": f"{style},pad=0.35", "fc": "white", "ec": BLACK, "lw": 0.9}
        for node, name in zip(members, names, strict=True):
            axes.text(place[node, 0], row, literal(name), fontsize=8, ha="center", va="center",
                      zorder=5, bbox=frame)


def _short(names: list[str]) -> tuple[list[str], str]:
    """Shorten the names of a row; returns them and what was cut off the front of all."""
    bare = [name.partition("/")[0] for name in names]
    if len(set(bare)) == len(names):
        names = bare
    if len(names) <= MOST_WHOLE_NAMES:
        return names, ""
    common = re.sub(r"\d+$", "", names[0])
    if not all(name.startswith(common) for name in names):
        return names, ""
    return [name[len(common):] for name in names], common.rstrip("-")


def _legend(axes: Axes, load: Floats, up: NDArray[np.bool_]) -> None:
    """Explain the classes that occur, one line below the drawing."""
    from matplotlib.lines import Line2D

    seen = np.unique(_class(load[up]))
    handles = [Line2D([], [], color=colour, linewidth=width, label=name)
               for number, (name, colour, width, _) in enumerate(CLASSES) if number in seen]
    if not up.all():
        handles.append(Line2D([], [], color=BLACK, linewidth=1.2, linestyle="--", marker="x",
                              label="down"))
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), frameon=False,
                ncols=len(handles), fontsize=8.5)
