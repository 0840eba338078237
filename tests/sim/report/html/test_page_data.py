"""The data of the page's charts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.cluster import Cluster
from sim.records.results import Span
from sim.report.html import page_data
from sim.report.html.page_data import drawable, means
from sim.schema import load
from tests.support.cluster_files import topology, write
from tests.support.report_samples import cell

if TYPE_CHECKING:
    from pathlib import Path


def test_short_bars_of_one_kind_become_one_and_time_is_kept() -> None:
    spans = [Span("h/gpu0", f"l{n}", "backward", n * 1e-3, (n + 1) * 1e-3) for n in range(1000)]
    row = replace(cell("x", 8, 100, None, ""), spans=tuple(spans), links=None)
    bars = page_data._timeline(row, 100)["bars"]
    assert len(bars) <= 100
    assert sum(end - start for *_, start, end in bars) == pytest.approx(1000)
    assert bars[0][3] == 0


def test_tracks_that_do_the_same_are_one() -> None:
    spans = [Span("h/gpu0", "f", "forward", 0.0, 0.1)] + [
        Span(f"h/gpu{n}/stream0", "b", "transfer", 0.1, 0.2) for n in range(8)]
    row = replace(cell("x", 8, 100, None, ""), spans=tuple(spans), links=None)
    assert page_data._timeline(row, 100)["tracks"] == ["h/gpu0", "h/gpu0/stream0 and 7 alike"]


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=12), st.integers(1, 30), st.data())
def test_means_over_equal_parts_carry_what_was_carried(lengths: list[float], parts: int,
                                                       data: st.DataObject) -> None:
    times = np.concatenate([[0.0], np.cumsum(lengths)])
    share = np.array([data.draw(st.lists(st.floats(0, 1), min_size=len(lengths),
                                         max_size=len(lengths)))])
    edges = np.linspace(0, times[-1], parts + 1)
    found = means(times, share, edges)
    assert (found * np.diff(edges)).sum() == pytest.approx((share * np.diff(times)).sum())
    assert ((found >= -1e-9) & (found <= 1 + 1e-9)).all()


@pytest.mark.parametrize(("hosts", "hosts_drawn", "nodes"), [(4, True, 10), (600, False, 6),
                                                             (2, True, 8)])
def test_a_fabric_is_drawn_as_far_as_there_is_place(tmp_path: Path, hosts: int, nodes: int,
                                                    hosts_drawn: bool) -> None:
    fabric = {"template": "leaf-spine", "leaves": 2, "spines": 4, "rate": "100Gbps"}
    made = Cluster(load(write(tmp_path, topology(hosts=hosts, fabric=fabric))))
    cables, drawn = drawable(made.fabric)
    assert len(drawn) == nodes
    assert any(not node[3] for node in drawn) == hosts_drawn
    assert len(cables) == 8 + (hosts if hosts_drawn else 0)
