"""Data of the page's charts: figures of rows, and one row at a time in detail.

A file must stay small whatever the cluster is, so there are bounds: some rows have details, a
timeline has some thousand bars (short neighbours of one kind become one), loads are means over
equal parts of the step, and a fabric of more than some hundred nodes is drawn without its hosts, or
not at all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.report.chrome_trace import natural_key
from sim.report.export import breakdown_ms
from sim.report.fabric_drawing import positions
from sim.report.numbers import rate, rate_unit, rounded
from sim.report.panels import GPU_KINDS, GREY, KIND_COLOURS, busiest, labels
from sim.report.plot import timelines
from sim.report.quantities import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric
    from sim.records.results import Cause, LinkUse, Report, ScenarioResult, Span

    Floats = NDArray[np.float64]

MOST_ROWS = 80
"""Rows of the charts of all rows; the table has all."""
MOST_TRACKS = 12
MOST_DETAILS = 24
"""Rows that can be looked at in detail."""
MOST_BARS = 8_000
"""Bars of all timelines together."""
MOST_CAUSES = 12
PARTS_OF_STEP = 24
"""Equal parts of a step, over which the loads of cables are means."""
MOST_SAMPLES = 120
"""Times of a row's utilisation."""
MOST_NODES = 400
MOST_CABLES = 1600


def page_data(report: Report, fabric: Fabric) -> dict[str, Any]:
    """All data of the page's script."""
    finite = [row for row in report.scenarios
              if math.isfinite(row.step_s) and math.isfinite(row.images_per_s)]
    names = labels(finite)
    drawn, nodes = drawable(fabric)
    timed = timelines(finite)
    detailed = [(name, row) for name, row in zip(names, finite, strict=True)
                if any(row is one for one in timed) or row.causes][:MOST_DETAILS]
    bars = MOST_BARS // max(1, len(detailed))
    return {
        "rows": [_row(name, row) for name, row in zip(names, finite, strict=True)][:MOST_ROWS],
        "unit": rate_unit(finite),
        "parts": [name.replace("_", " ") for name in breakdown_ms(finite[0].breakdown)]
        if finite else [],
        "kinds": {kind: KIND_COLOURS.get(kind, GREY) for kind in dict.fromkeys(
            [*KIND_COLOURS, *(span.kind for _, row in detailed for span in row.spans)])},
        "details": [_detail(name, row, fabric, drawn, bars)
                    for name, row in detailed],
        "fabric": {"nodes": nodes, "cables": _cables(fabric, drawn)} if nodes else None,
    }


def _row(name: str, row: ScenarioResult) -> dict[str, Any]:
    interval = row.interval
    return {
        "label": name, "rate": rounded(row.images_per_s),
        "interval": None if interval is None else [rounded(value) for value in (
            interval.low_images_per_s, interval.median_images_per_s,
            interval.high_images_per_s)],
        "published": None if row.expect is None else rounded(row.expect.images_per_s),
        "parts": list(breakdown_ms(row.breakdown).values()),
    }


def _detail(name: str, row: ScenarioResult, fabric: Fabric, drawn: NDArray[np.int64],
            most_bars: int) -> dict[str, Any]:
    loads = busiest([row])
    return {
        "label": name, "rate": rounded(row.images_per_s),
        "causes": [_cause(cause, row) for cause in row.causes[:MOST_CAUSES]],
        "timeline": _timeline(row, most_bars),
        "loads": [_load(load.name.rpartition(": ")[2], load.times_s, load.share)
                  for load in loads],
        "cables": _cable_loads(row, fabric, drawn),
        "step_ms": rounded(row.shown_s * 1e3),
    }


def _cause(cause: Cause, row: ScenarioResult) -> list[Any]:
    """Parameter, its ends in words, and the row's rate at both."""
    ends = ("" if cause.low is None or cause.high is None else
            f"{quantity(cause.parameter, cause.low)} to {quantity(cause.parameter, cause.high)}")
    return [cause.parameter, ends, rounded(cause.at_low), rounded(cause.at_high),
            f"{rate(cause.at_low)} to {rate(cause.at_high)}",
            rounded(100 * (cause.at_low / row.images_per_s - 1)),
            rounded(100 * (cause.at_high / row.images_per_s - 1))]


def _timeline(row: ScenarioResult, most_bars: int) -> dict[str, Any]:
    """Tracks, names and bars: number of track, kind, number of name, start and end in ms."""
    by_track: dict[str, list[Span]] = {}
    for span in row.spans:
        by_track.setdefault(span.track, []).append(span)
    tracks = _tracks(row, by_track)
    begin_s, least_s = row.start_s, row.shown_s / most_bars
    names: dict[str, int] = {}
    bars: list[list[Any]] = []
    for number, track in enumerate(tracks):
        spans = sorted(by_track[track], key=lambda span: span.start_s)
        for first, last, start_s, end_s in _merged(spans, least_s):
            words = first.name if first.name == last.name else f"{first.name} … {last.name}"
            if first.limit:
                words += f" (limit: {first.limit})"
            bars.append([number, first.kind, names.setdefault(words, len(names)),
                         round((start_s - begin_s) * 1e3, 4), round((end_s - begin_s) * 1e3, 4)])
    kept = sorted(sorted(bars, key=lambda bar: bar[3] - bar[4])[:most_bars])
    return {"tracks": [f"{track} and {alike} alike" if alike else track
                       for track, alike in tracks.items()],
            "names": list(names), "bars": kept, "left_out": len(bars) - len(kept)}


def _tracks(row: ScenarioResult, by_track: Mapping[str, Sequence[Span]]) -> dict[str, int]:
    """The first GPU, and what its host's network and the fabric did, as far as there is place.

    Of tracks that do the same at the same times only one is kept, with the number of the others.
    """
    gpu = next((span.track for span in row.spans if span.kind in GPU_KINDS), "")
    host = gpu.partition("/")[0] + "/"
    others = [track for track, spans in by_track.items()
              if track != gpu and any(span.kind not in GPU_KINDS for span in spans)]
    near = [track for track in others if track.startswith(host)] or others
    alike: dict[object, str] = {}
    counts: dict[str, int] = {gpu: 0} if gpu else {}
    for track in sorted(near, key=natural_key):
        same = frozenset((span.kind, span.start_s, span.end_s) for span in by_track[track])
        first = alike.setdefault(same, track)
        counts[first] = counts.get(first, -1) + 1
    return dict(list(counts.items())[:MOST_TRACKS])


def _merged(spans: Sequence[Span], least_s: float) -> list[tuple[Span, Span, float, float]]:
    """Join short spans of one kind that follow one another: first, last, start and end."""
    made: list[tuple[Span, Span, float, float]] = []
    for span in spans:
        if made:
            first, _, start_s, end_s = made[-1]
            short = min(span.end_s - span.start_s, end_s - start_s) < least_s
            if (short and span.kind == first.kind and span.limit == first.limit
                    and -least_s <= span.start_s - end_s < least_s):
                made[-1] = (first, span, start_s, max(end_s, span.end_s))
                continue
        made.append((span, span, span.start_s, span.end_s))
    return made


def _load(name: str, times_s: Floats, share: Floats) -> dict[str, Any]:
    """Used share in percent from each time on, thinned to `MOST_SAMPLES` means."""
    if len(share) > MOST_SAMPLES:
        edges = np.linspace(times_s[0], times_s[-1], MOST_SAMPLES + 1)
        share = means(times_s, share[None, :], edges)[0]
        times_s = edges
    return {"name": name, "times_ms": [round(one * 1e3, 4) for one in times_s.tolist()],
            "percent": [round(100 * one, 1) for one in share.tolist()]}


def means(times_s: Floats, share: Floats, edges_s: Floats) -> Floats:
    """Mean of each row of ``share``, constant between ``times_s``, between each two edges."""
    carried = np.concatenate([np.zeros((len(share), 1)),
                              np.cumsum(share * np.diff(times_s), axis=1)], axis=1)
    at = np.array([np.interp(edges_s, times_s, one) for one in carried]).reshape(len(share), -1)
    return np.asarray(np.diff(at, axis=1) / np.diff(edges_s))


def drawable(fabric: Fabric) -> tuple[NDArray[np.int64], list[list[Any]]]:
    """Cables that are drawn, and the nodes: name, x, y (tier), whether a switch, number.

    A fabric that is too large is drawn without its hosts, or has no nodes at all.
    """
    src, dst = fabric.link_src[0::2], fabric.link_dst[0::2]
    switches = len(fabric.switches)
    for cables in (np.arange(len(src)), np.flatnonzero((src < switches) & (dst < switches))):
        ends = np.unique(np.concatenate([src[cables], dst[cables]]))
        if 0 < len(ends) <= MOST_NODES and len(cables) <= MOST_CABLES:
            place = positions(fabric)
            return cables, [[fabric.node_name(node), round(float(place[node, 0]), 4),
                             int(place[node, 1]), bool(node < switches), node]
                            for node in ends.tolist()]
    return np.empty(0, np.int64), []


def _cables(fabric: Fabric, drawn: NDArray[np.int64]) -> list[list[Any]]:
    """Both ends of each cable, by number of node, its rate in Gb/s, and whether it is up."""
    up = fabric.link_up[0::2] & fabric.link_up[1::2]
    return [[int(fabric.link_src[2 * cable]), int(fabric.link_dst[2 * cable]),
             rounded(float(fabric.link_bps[2 * cable]) / 1e9), bool(up[cable])]
            for cable in drawn.tolist()]


def _cable_loads(row: ScenarioResult, fabric: Fabric,
                 drawn: NDArray[np.int64]) -> list[list[Any]]:
    """Busy cables, by number in the drawing: percent of the busier direction in each part."""
    links: LinkUse | None = row.links
    if links is None or not len(drawn) or row.shown_s <= 0:
        return []
    place = {int(cable): number for number, cable in enumerate(drawn)}
    edges = row.start_s + np.linspace(0, row.shown_s, PARTS_OF_STEP + 1)
    known = [(index, place[link // 2]) for index, name in enumerate(links.names)
             for link in fabric.links_by_name.get(name, ()) if link // 2 in place]
    if not known:
        return []
    percent = 100 * means(links.times_s, links.share[[index for index, _ in known]], edges)
    busy: dict[int, Floats] = {}
    for (_, cable), shares in zip(known, percent, strict=True):
        busy[cable] = np.maximum(busy.get(cable, 0.0), shares)
    return [[cable, [round(one) for one in shares.tolist()]]
            for cable, shares in sorted(busy.items()) if shares.max() >= 0.5]
