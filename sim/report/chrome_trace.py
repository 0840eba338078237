"""The timeline as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open.

Each scenario's hosts, and its fabric, are *processes*; each GPU, NIC, stream and link is a *thread*
(one track) with a slice for each span. A resource's utilisation is a *counter* track, 0 to 100 %,
for the busiest resources of each host; resources with the same curve share one, and a point is left
out where the share changes by less than a hundredth, so that counters do not drown the slices.
The step of every scenario is shown as starting at time 0, so that scenarios line up. Spans that
overlap on one track go to extra tracks named ``eth0 (2)``, since slices of one track may only nest.
Events are sorted by process, track and time; times are in µs with nine significant digits.

Format: "Trace Event Format", Google, the JSON Object Format with phases X, C and M.
"""

from __future__ import annotations

import heapq
import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.report.answer_table import label
from sim.report.numbers import rounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sim.records.results import LinkUse, Report, ScenarioResult, Span

    Event = dict[str, Any]

FABRIC = "fabric"
MOST_COUNTERS = 4
"""Counters of a host or of the fabric, its busiest resources."""
LEAST_CHANGE = 1.0
"""Change of a counter, in percent of the capacity, that is worth a point."""


def report_trace(report: Report) -> str:
    """Text of the trace of all scenarios of ``report``, one event a line."""
    events: list[Event] = []
    process = 0
    for row in report.scenarios:
        origin_s = row.start_s
        for host, (spans, counters) in _by_host(row).items():
            process += 1
            events += _process(process, f"{label(row)}: {host}", row.links, origin_s,
                               spans, counters)
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, allow_nan=False) for event in events)
    about = json.dumps({"topology": report.topology, "seed": report.seed}, ensure_ascii=False)
    return f'{{"displayTimeUnit": "ms", "otherData": {about}, "traceEvents": [\n{lines}\n]}}\n'


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sort key that puts gpu2 before gpu10."""
    return [(int(digits or -1), text) for digits, text in re.findall(r"(\d+)|(\D+)", name)]


def disjoint_lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Spread spans over as few lanes as it takes for no two of one lane to overlap."""
    lanes: list[list[Span]] = []
    free: list[tuple[float, int]] = []  # When each lane is next free, the earliest first.
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s, span.name)):
        if free and free[0][0] <= span.start_s:
            lane = heapq.heappop(free)[1]
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(span)
        heapq.heappush(free, (span.end_s, lane))
    return lanes


def _by_host(row: ScenarioResult) -> dict[str, tuple[list[Span], list[int]]]:
    """Return each host's spans and the indices of its resources in ``row.links``."""
    hosts: dict[str, tuple[list[Span], list[int]]] = defaultdict(lambda: ([], []))
    for span in row.spans:
        hosts[_split(span.track)[0]][0].append(span)
    for index, name in enumerate(row.links.names if row.links else ()):
        hosts[_split(name)[0]][1].append(index)
    return dict(sorted(hosts.items(), key=lambda item: (item[0] == FABRIC, natural_key(item[0]))))


def _split(track: str) -> tuple[str, str]:
    host, slash, name = track.partition("/")
    return (host, name) if slash and "->" not in host else (FABRIC, track)


def _process(pid: int, name: str, links: LinkUse | None, origin_s: float,
             spans: Sequence[Span], counters: Sequence[int]) -> Iterator[Event]:
    yield _metadata(pid, 0, "process_name", name=name)
    yield _metadata(pid, 0, "process_sort_index", sort_index=pid)
    tracks: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        tracks[span.track].append(span)
    thread = 0
    for track in sorted(tracks, key=natural_key):
        for lane, content in enumerate(disjoint_lanes(tracks[track])):
            thread += 1
            suffix = f" ({lane + 1})" if lane else ""
            yield _metadata(pid, thread, "thread_name", name=_split(track)[1] + suffix)
            yield _metadata(pid, thread, "thread_sort_index", sort_index=thread)
            for span in content:
                yield _slice(pid, thread, span, origin_s)
    if links is not None:
        for index in sorted(_busiest(links, counters), key=lambda i: natural_key(links.names[i])):
            yield from _counter(pid, links, index, origin_s)


def _busiest(links: LinkUse, counters: Sequence[int]) -> list[int]:
    """Choose the resources that get a counter: the busiest, and of equal curves one."""
    mean = links.share @ np.diff(links.times_s)
    chosen: list[int] = []
    for index in sorted(counters, key=lambda i: -mean[i]):
        if len(chosen) < MOST_COUNTERS and not any(
                np.allclose(links.share[index], links.share[other], atol=LEAST_CHANGE / 100)
                for other in chosen):
            chosen.append(index)
    return chosen


def _metadata(pid: int, tid: int, kind: str, **values: str | int) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": values}


def _slice(pid: int, tid: int, span: Span, origin_s: float) -> Event:
    start = _us(span.start_s - origin_s)
    # The end is rounded like the next slice's start, so that neighbours touch and never overlap.
    limit = {"args": {"limited by": span.limit}} if span.limit else {}
    return {"ph": "X", "pid": pid, "tid": tid, "name": span.name, "cat": span.kind,
            "ts": start, "dur": round(max(0.0, _us(span.end_s - origin_s) - start), 6), **limit}


def _counter(pid: int, links: LinkUse, index: int, origin_s: float) -> Iterator[Event]:
    name = f"{_split(links.names[index])[1]} used %"
    shown: float | None = None
    shares = [round(100 * float(share), 2) for share in links.share[index]]
    for time, share in zip(links.times_s, [*shares, 0.0], strict=True):
        ends = share in (0.0, 100.0) and share != shown
        if shown is None or ends or abs(share - shown) >= LEAST_CHANGE:
            shown = share
            yield {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": _us(float(time) - origin_s),
                   "args": {"used": share}}


def _us(seconds: float) -> float:
    return rounded(seconds * 1e6) or 0.0
