"""The trace against Google's Trace Event Format, and what it must show."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records.results import LinkUse, Report, Span
from sim.report.chrome_trace import disjoint_lanes, natural_key, report_trace
from tests.support.report_samples import taco

NEEDED = {"X": {"name", "cat", "ts", "dur", "pid", "tid"}, "C": {"name", "ts", "pid", "args"},
          "M": {"name", "pid", "tid", "args"}}


def events(report: Report) -> list[dict[str, Any]]:
    document = json.loads(report_trace(report))
    assert document["displayTimeUnit"] in ("ms", "ns")
    result: list[dict[str, Any]] = document["traceEvents"]
    return result


def tracks(trace: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Slices by the names of their process and thread."""
    names: dict[tuple[str, int, int], str] = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in trace if event["name"] in ("process_name", "thread_name")}
    result = defaultdict(list)
    for event in trace:
        if event["ph"] == "X":
            result[names["process_name", event["pid"], 0],
                   names["thread_name", event["pid"], event["tid"]]].append(event)
    return result


def test_every_event_has_what_its_phase_needs() -> None:
    trace = events(taco())
    assert {event["ph"] for event in trace} == {"X", "C", "M"}
    for event in trace:
        assert NEEDED[event["ph"]] <= event.keys()
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        assert isinstance(event["pid"], int)


def test_slices_of_one_track_are_sorted_and_do_not_overlap() -> None:
    for slices in tracks(events(taco())).values():
        for before, after in pairwise(slices):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3  # 1 ns


def test_every_gpu_and_stream_has_a_track_with_its_spans() -> None:
    report = taco()
    shown = tracks(events(report))
    row = next(row for row in report.scenarios if (row.name, row.gpus) == ("LightCC+HARP", 16))
    expected = defaultdict(list)
    for span in row.spans:
        expected[span.track].append(span)
    for track, spans in expected.items():
        host, _, name = track.partition("/")
        spans.sort(key=lambda span: span.start_s)
        slices = shown[f"LightCC+HARP, 16 GPUs: {host}", name]
        assert [event["name"] for event in slices] == [span.name for span in spans]
        assert [event["dur"] for event in slices] == pytest.approx(
            [(span.end_s - span.start_s) * 1e6 for span in spans], abs=1e-2)


def test_counters_follow_the_utilisation_and_return_to_zero() -> None:
    links = LinkUse(("a->b", "h-0/eth0"), np.array([1.0, 1.1, 1.2, 1.4]),
                    np.array([[0.5, 0.5, 1.0], [0.0, 0.25, 0.0]]))
    row = replace(taco().scenarios[0], links=links, spans=())
    counters = [event for event in events(Report("t", 1, (row,))) if event["ph"] == "C"]
    values = [(event["name"], event["ts"], event["args"]["used"]) for event in counters]
    assert values == [
        ("eth0 used %", 0.0, 0.0), ("eth0 used %", pytest.approx(1e5), 25.0),
        ("eth0 used %", pytest.approx(2e5), 0.0),
        ("a->b used %", 0.0, 50.0), ("a->b used %", pytest.approx(2e5), 100.0),
        ("a->b used %", pytest.approx(4e5), 0.0)]


def test_counters_do_not_drown_the_slices() -> None:
    """Eight resources of a host: two curves, one of them six times, and a curve of small steps."""
    times = np.linspace(1.0, 2.0, 1001)
    steep, flat = np.tile([0.9, 0.1], 500), 0.5 + 1e-5 * np.arange(1000)
    links = LinkUse(tuple(f"h-0/x{number}" for number in range(8)), times,
                    np.stack([steep] * 6 + [flat, np.zeros(1000)]))
    row = replace(taco().scenarios[0], links=links, spans=())
    counters = [event for event in events(Report("t", 1, (row,))) if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"x0 used %", "x6 used %", "x7 used %"}
    by_name = {name: [event["args"]["used"] for event in counters if event["name"] == name]
               for name in ("x0 used %", "x6 used %", "x7 used %")}
    assert len(by_name["x0 used %"]) == 1001
    assert by_name["x6 used %"] == [50.0, 51.0, 0.0] or len(by_name["x6 used %"]) == 2
    assert by_name["x7 used %"] == [0.0]


def test_processes_are_hosts_in_order_and_the_fabric_last() -> None:
    spans = tuple(Span(track, "x", "transfer", 0, 1)
                  for track in ("leaf0->spine1", "h-10/eth0", "h-2/gpu10", "h-2/gpu9"))
    row = replace(taco().scenarios[0], spans=spans, links=None)
    assert list(tracks(events(Report("t", 1, (row,))))) == [
        ("Horovod+TCP, 1 GPU: h-2", "gpu9"), ("Horovod+TCP, 1 GPU: h-2", "gpu10"),
        ("Horovod+TCP, 1 GPU: h-10", "eth0"), ("Horovod+TCP, 1 GPU: fabric", "leaf0->spine1")]


def test_concurrent_spans_of_one_track_get_tracks_of_their_own() -> None:
    spans = (Span("h/eth0", "a", "transfer", 5, 7), Span("h/eth0", "b", "transfer", 6, 8))
    row = replace(taco().scenarios[0], spans=spans, links=None)
    shown = tracks(events(Report("t", 1, (row,))))
    assert [name for _, name in shown] == ["eth0", "eth0 (2)"]
    assert [event["ts"] for slices in shown.values() for event in slices] == [0.0, 1e6]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=30))
def test_lanes_are_disjoint_complete_and_as_few_as_possible(times: list[tuple[int, int]]) -> None:
    spans = [Span("t", str(i), "transfer", start, start + length)
             for i, (start, length) in enumerate(times)]
    lanes = disjoint_lanes(spans)
    assert sorted(span.name for lane in lanes for span in lane) == sorted(
        span.name for span in spans)
    for lane in lanes:
        for before, after in pairwise(lane):
            assert before.end_s <= after.start_s
    if all(length > 0 for _, length in times):  # The most that are ever open at once.
        deepest = max((sum(start <= at < start + length for start, length in times)
                       for at in range(41)), default=0)
        assert len(lanes) == deepest


def test_the_same_report_gives_the_same_bytes() -> None:
    assert report_trace(taco()) == report_trace(taco())


def test_a_report_without_spans_is_a_valid_empty_trace() -> None:
    assert events(Report("t", 1, ())) == []


def test_natural_order() -> None:
    names = ["gpu10", "gpu9", "eth0", "7", "leaf1->spine2", "leaf1->spine10", "gpu1/x"]
    assert sorted(names, key=natural_key) == [
        "eth0", "gpu1/x", "gpu9", "gpu10", "leaf1->spine2", "leaf1->spine10", "7"]
