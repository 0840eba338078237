"""The timeline's file: Horovod's events, in balance, and whole JSON whenever it is looked at."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.lightcc.horovod.negotiation import Request
from harp.lightcc.horovod.runtime import Entry
from harp.lightcc.horovod.timeline import Timeline
from tests.harp.lightcc.horovod.test_runtime import PATIENCE_S, gradient, reduce_all, runtimes_of
from tests.support.levels import draws


def events_of(path):
    """Events by the name of their tensor, held to the format's law."""
    events = json.loads(path.read_text())
    names = {event["pid"]: event["args"].get("name", "") for event in events
             if event.get("name") == "process_name"}
    found = {name: [] for name in names.values() if name}
    opened = dict.fromkeys(names, 0)
    timed = [event for event in events if event["ph"] != "M"]
    assert all(one["ts"] <= other["ts"] for one, other in pairwise(timed))
    for event in timed:
        if event["ph"] == "i":
            assert event == {"ph": "i", "name": "CYCLE_START", "ts": event["ts"], "s": "g"}
            continue
        found[names[event["pid"]]].append(event)
        opened[event["pid"]] += {"B": 1, "E": -1, "X": 0}[event["ph"]]
        assert 0 <= opened[event["pid"]] <= 2
        assert ("name" in event) == (event["ph"] != "E")
    return found


def phases(events):
    """Events without times: names begin, X is a rank, / an end and its arguments."""
    return [event["name"] if event["ph"] == "B" else "X" if event["ph"] == "X"
            else "/" + " ".join(event.get("args", {}).values()) for event in events]


def gathering(name, data):
    made = []

    def make(rows):
        made.append(np.empty((rows, data.shape[1]), data.dtype))
        return made[0].view(np.uint8).reshape(-1)
    return Entry(Request("allgather", name, "float32", data.shape, data.nbytes),
                 data.view(np.uint8).reshape(-1), lambda _: made[0], make)


def test_each_tensor_has_negotiation_call_and_activities_with_type_and_shape(tmp_path):
    timeline, path = Timeline(), tmp_path / "timeline.json"
    timeline.start(str(path), mark_cycles=True)
    with runtimes_of(2, timeline=timeline) as (runtimes, _):
        reduce_all(runtimes, [[np.ones(50, "f4")] for _ in range(2)])
        reduce_all(runtimes, [[np.ones(50, "f4"), np.ones(70, "f4")] for _ in range(2)],
                   group="both", group_size=2)
        gathered = [gathering("g", np.ones((1 + rank, 3), "f4")) for rank in range(2)]
        wrong = [gradient("w", np.ones(1 + rank, "f4")) for rank in range(2)]
        for entries in (gathered, wrong):
            for runtime, entry in zip(runtimes, entries, strict=True):
                runtime.enqueue([entry])
            for entry in entries:
                entry.future.exception(PATIENCE_S)
    timeline.stop()
    found = events_of(path)
    asked = ["NEGOTIATE_ALLREDUCE", "X", "X", "/"]
    fused = ["MEMCPY_IN_FUSION_BUFFER", "/", "LIGHTCC_ALLREDUCE", "/", "MEMCPY_OUT_FUSION_BUFFER",
             "/"]
    assert {name: phases(events) for name, events in found.items()} == {
        "t0": [*asked, "ALLREDUCE", "LIGHTCC_ALLREDUCE", "/", "/float32 [50]",
               *asked, "ALLREDUCE", *fused, "/float32 [50]"],
        "t1": [*asked, "ALLREDUCE", *fused, "/float32 [70]"],
        "g": ["NEGOTIATE_ALLGATHER", "X", "X", "/", "ALLGATHER", "ALLOCATE_OUTPUT", "/",
              "LIGHTCC_ALLGATHER", "/", "/float32 [3, 3]"],
        "w": [*asked, "ERROR", "/"]}
    for events in found.values():
        ready = [event["name"] for event in events if event["ph"] == "X"]
        assert sorted(ready) == sorted(["0", "1"] * (len(ready) // 2))
    start, *_ = json.loads(path.read_text())
    since_us = time.time_ns() // 1000 - start["args"]["start_time_since_epoch_in_micros"]
    assert (start["name"], start["pid"]) == ("process_name", 0)
    assert 0 <= since_us < 1e6 * PATIENCE_S
    assert "CYCLE_START" in path.read_text()


STEPS = st.one_of(
    st.tuples(st.just("negotiate"), st.just("allreduce")),
    st.tuples(st.just("rank_is_ready"), st.integers(0, 3)), st.tuples(st.just("decide")),
    st.tuples(st.just("call"), st.just("allreduce")),
    st.tuples(st.just("activity"), st.sampled_from(["IN", "OUT"])), st.tuples(st.just("over")))


@settings(deadline=None, max_examples=draws(200))
@given(st.lists(st.tuples(st.sampled_from(["a", 'b"\\']), STEPS)), st.integers(0, 5))
def test_events_are_in_balance_and_the_file_is_whole_for_any_calls(tmp_path_factory, calls,
                                                                   begin):
    timeline, path = Timeline(), tmp_path_factory.mktemp("timeline") / "it.json"
    timeline.start(str(path))
    for at, (name, (step, *more)) in enumerate(calls):
        if at == begin:  # amid whatever it is
            timeline.stop()
            timeline.start(str(path))
        if step == "negotiate":
            timeline.negotiate({name: more[0]})
        elif step == "over":
            timeline.over({name: {"dtype": "float32"}})
        else:
            getattr(timeline, step)([name], *more)
        events_of(path)
    timeline.stop()
    events_of(path)


def test_a_second_request_is_answered_when_rank_0_is_done(tmp_path):
    timeline, path = Timeline(), tmp_path / "it.json"
    timeline.start(str(path))
    timeline.negotiate({"a": "allreduce"})
    timeline.decide(["a"])
    timeline.call(["a"], "allreduce")
    timeline.negotiate({"a": "allreduce"})
    timeline.rank_is_ready(["a"], 1)
    timeline.activity(["a"], "LIGHTCC_ALLREDUCE")
    timeline.over({"a": {"dtype": "int8"}})
    timeline.decide(["a"])
    assert phases(events_of(path)["a"]) == [
        "NEGOTIATE_ALLREDUCE", "/", "ALLREDUCE", "/int8", "NEGOTIATE_ALLREDUCE", "X", "/"]


def test_sets_of_ranks_have_tensors_of_their_own(tmp_path):
    timeline, path = Timeline(), tmp_path / "it.json"
    timeline.start(str(path))
    of_set = timeline.of_set(2)
    for one in (timeline, of_set):
        one.call(["a"], "allreduce")
    of_set.over({"a": {}})
    timeline.stop()
    assert not of_set.is_written
    assert {name: phases(events) for name, events in events_of(path).items()} == {
        "a": ["ALLREDUCE"], "set 2: a": ["ALLREDUCE", "/"]}


def test_the_file_of_a_process_that_was_killed_is_whole(tmp_path):
    path = tmp_path / "it.json"
    with subprocess.Popen([sys.executable, "-c", f"""
from harp.lightcc.horovod.timeline import Timeline
timeline = Timeline()
timeline.start({str(path)!r})
for step in range(101):
    timeline.call([f"t{{step % 10}}"], "allreduce")
    timeline.over({{f"t{{step % 10}}": {{"dtype": "float32", "shape": "[1]"}}}})
print("written", flush=True)
input()
"""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "written\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait(PATIENCE_S)
    assert sum(map(len, events_of(path).values())) >= 200


def test_a_disk_that_is_full_ends_the_timeline_and_not_the_job(tmp_path):
    path = tmp_path / "it.json"
    ended = subprocess.run([sys.executable, "-c", f"""
import resource
from harp.lightcc.horovod.timeline import Timeline
timeline = Timeline()
timeline.start({str(path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
while timeline.is_written:
    timeline.call(["a"], "allreduce")
    timeline.over({{"a": {{}}}})
timeline.stop()
"""], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert ended.stderr.splitlines() == [
        "the timeline ends here, since it cannot be written: File too large"]
    assert sum(map(len, events_of(path).values())) > 20
