"""The drawing of a fabric: every cable once, by its load, and every node at its tier."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from harp.routing.templates import (
    Endpoints,
    clos3,
    dual_tor,
    leaf_spine,
    rail,
    single_switch,
)
from sim.report.fabric_drawing import (
    CLASSES,
    cable_loads,
    draw_fabric,
    positions,
    route_loads,
)

FABRICS = {
    "single": single_switch(Endpoints.uniform(6)),
    "leaf-spine": leaf_spine(Endpoints.uniform(8), leaves=2, spines=4),
    "rail": rail(Endpoints.uniform(4, nics=4), hosts_per_leaf=2, spines=2),
    "clos3": clos3(Endpoints.uniform(32), pods=4, leaves=2, aggs=2, cores=4),
    "dual-tor": dual_tor(Endpoints.uniform(4, ports=2), pairs=2, spines=2),
}


def drawn(axes) -> dict[str, int]:
    """Number of lines by colour."""
    return {to_hex(lines.get_colors()[0]).upper(): len(lines.get_segments())
            for lines in axes.collections
            if isinstance(lines, LineCollection) and lines.get_segments()}


@pytest.mark.parametrize("name", FABRICS)
def test_every_cable_and_node_is_drawn_once(name):
    fabric = FABRICS[name]
    figure = Figure()
    axes = figure.subplots()
    draw_fabric(axes, fabric)
    figure.draw_without_rendering()
    assert sum(drawn(axes).values()) == len(fabric.link_bps) // 2
    place = positions(fabric)
    assert len(np.unique(place.round(9), axis=0)) == len(place)
    assert (place[len(fabric.switches):, 1] == 0).all()
    climbs = place[fabric.link_dst, 1] - place[fabric.link_src, 1]
    assert (np.abs(climbs) == 1).all()


def test_switches_stand_over_what_hangs_below_them():
    fabric = FABRICS["clos3"]
    place = positions(fabric)
    for pod in range(4):
        inside = [place[number, 0] for name, number in fabric.nodes.items()
                  if name.startswith(f"pod{pod}-")]
        assert pod / 4 <= min(inside) <= max(inside) <= (pod + 1) / 4


def test_colours_and_labels_say_the_load():
    fabric = FABRICS["leaf-spine"]
    load = np.zeros(len(fabric.link_bps))
    load[[0, 3]] = 1.0 + 1e-12
    load[16], load[19] = 2.0, 2.5
    figure = Figure()
    axes = figure.subplots()
    draw_fabric(axes, fabric, load, title="Two cables for $5")
    figure.draw_without_rendering()
    colours = [colour.upper() for _, colour, *_ in CLASSES]
    assert drawn(axes) == dict(zip(colours, [12, 2, 1, 1], strict=True))
    assert {"2", "2.5"} <= {text.get_text() for text in axes.texts}
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [name for name, *_ in CLASSES]


def test_a_cable_that_is_down_is_crossed_out_and_not_coloured():
    fabric = FABRICS["leaf-spine"].without([16])
    figure = Figure()
    axes = figure.subplots()
    draw_fabric(axes, fabric, np.ones(len(fabric.link_bps)))
    figure.draw_without_rendering()
    assert sum(drawn(axes).values()) == len(fabric.link_bps) // 2
    assert drawn(axes)[CLASSES[1][1].upper()] == len(fabric.link_bps) // 2 - 1
    assert "down" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_loads_add_up():
    fabric = FABRICS["leaf-spine"]
    flows = fabric.flows([0, 1, 2, 3], [4, 5, 6, 7], [50000, 50001, 50002, 50003])
    load = route_loads(fabric, *fabric.route(flows), 100e9)
    assert load.sum() == 4 * 4
    ptr, links, share = fabric.route_spray(flows)
    sprayed = route_loads(fabric, ptr, links, 100e9, share)
    assert sprayed.sum() == pytest.approx(4 * 4)
    assert sprayed.max() == pytest.approx(1.0)
    assert cable_loads(fabric, load).max() == load.max()
    with pytest.raises(ValueError, match="fabric of 32 links"):
        cable_loads(fabric, [1.0])
