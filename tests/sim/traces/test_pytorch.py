"""PyTorch's traces as Chakra's: files that torch writes here, and a GPU's, made by hand."""

from __future__ import annotations

import gzip
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harp.reading import FileError, unpacked
from sim.schema import TopologyError
from sim.trace import main
from sim.traces.chakra_format import COLL, COLLECTIVES, COMP, RECV, SEND, read_trace, write_trace
from sim.traces.pytorch import Event, convert, pieces, without
from tests.support import ROOT
from tests.support.cluster_files import ALPHA_S, RATE_BPS, topology, write
from tests.support.json_changes import anything, changed, one_sentence_at_most, places
from tests.support.levels import draws
from tests.support.torch_ranks import start

if TYPE_CHECKING:
    from pathlib import Path

    from sim.traces.chakra_format import Node

PARAMETERS = 64 * 256 + 256 + 256 * 8 + 8


def run(*words: object) -> Any:
    return CliRunner().invoke(main, [str(word) for word in words])


def converted(folder: Path, rank: int = 0, *more: object) -> list[Node]:
    done = run(folder / "x", "--et", folder / "et.*.json", "--kineto", folder / "kineto.*.json",
               *more)
    assert done.exit_code == 0, done.output
    return read_trace((folder / f"x.{rank}.et").read_bytes())[1]


def replayed(folder: Path, ranks: int) -> dict[str, Any]:
    cluster = write(folder, topology(hosts=ranks))
    done = run(folder / "x", "--topology", cluster, "--json", folder / "answer.json", "--quiet")
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


# ---- what torch writes

@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    ranks = start(ROOT / "tests" / "sim" / "traces" / "pytorch_job.py", str(folder), 2)
    said = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return folder


def spans(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    """Kineto's own spans, in their order."""
    document = json.loads((folder / f"kineto.{rank}.json").read_text())
    found = [span for span in document["traceEvents"] if span["ph"] == "X" and
             span["cat"] in ("cpu_op", "user_annotation")]
    return sorted(found, key=lambda span: span["ts"])


def without_backend(recorded: Path, folder: Path, late_us: float | None = None) -> Path:
    """The same files without the spans of gloo, which may be closed too late for the profiler.

    Or, with ``late_us``, with spans that are closed by so much later.
    """
    for rank in (0, 1):
        shutil.copy(recorded / f"et.{rank}.json", folder)
        document = json.loads((recorded / f"kineto.{rank}.json").read_text())
        of_gloo = [span for span in document["traceEvents"] if span["name"].startswith("gloo:")]
        for span in of_gloo:
            if late_us is None:
                document["traceEvents"].remove(span)
            else:
                span["dur"] = max(1, span["dur"] + late_us)
        (folder / f"kineto.{rank}.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("spans_of_gloo", [True, False])
def test_gradients_are_averaged_once_in_their_bytes(
        recorded: Path, tmp_path: Path, rank: int, *, spans_of_gloo: bool) -> None:
    folder = recorded if spans_of_gloo else without_backend(recorded, tmp_path)
    (average,) = [node for node in converted(folder, rank) if node.type == COLL]
    assert average.get("comm_type") == 0
    assert average.get("comm_size") == 4 * PARAMETERS
    assert average.get("pg_name") == "0"


@pytest.mark.parametrize("late_us", [None, 300, -1000])
def test_what_follows_waits_however_long_gloo_took(
        recorded: Path, tmp_path: Path, late_us: float | None) -> None:
    nodes = converted(without_backend(recorded, tmp_path, late_us))
    (average,) = [node for node in nodes if node.type == COLL]
    first = next(node for node in nodes if average.id in node.data_deps)
    names = [node.name for node in nodes[first.id - 1:first.id + 2]]
    assert any(name.startswith("aten::as_strided") for name in names)


def test_a_span_that_begins_after_its_result_was_taken_up_takes_no_time(
        recorded: Path, tmp_path: Path) -> None:
    """As where gloo's thread gets no core until the caller has gone on."""
    for rank in (0, 1):
        shutil.copy(recorded / f"et.{rank}.json", tmp_path)
        document = json.loads((recorded / f"kineto.{rank}.json").read_text())
        for span in document["traceEvents"]:
            if span["name"].startswith("gloo:"):
                span["ts"] += 1e6
        (tmp_path / f"kineto.{rank}.json").write_text(json.dumps(document))
    (average,) = [node for node in converted(tmp_path) if node.type == COLL]
    assert average.duration_us == 0


def test_work_is_the_recorded_step_without_the_wait(recorded: Path, tmp_path: Path) -> None:
    """The wait is the pause after the call, up to gloo's end or, untold, to the next operator."""
    folder = without_backend(recorded, tmp_path)
    work_us = sum(node.duration_us for node in converted(folder) if node.type == COMP)
    listed = spans(folder)
    (step,) = [span for span in listed if span["name"].startswith("ProfilerStep")]
    (asked,) = [span for span in listed if span["name"] == "c10d::allreduce_"]
    ops = [span for span in listed if span["cat"] == "cpu_op"]
    after = min(span["ts"] for span in ops if span["ts"] > asked["ts"])
    before = max(end for span in ops if (end := span["ts"] + span["dur"]) <= after)
    assert work_us == pytest.approx(step["dur"] - (after - before), rel=0.02, abs=30)


def test_each_call_over_gloo_counts_once(tmp_path: Path) -> None:
    """Gloo scatters what it reduced whole, its barrier has no tensor, its messages no rank."""
    job = ROOT / "tests" / "sim" / "traces" / "pytorch_job.py"
    ranks = start(job, [str(tmp_path), "calls"], 2)
    said = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    for rank, peer in ((0, "comm_dst"), (1, "comm_src")):
        nodes = [node for node in converted(tmp_path, rank) if node.type != COMP]
        assert [(COLLECTIVES[int(str(node.get("comm_type")))], node.get("comm_size"))
                for node in nodes if node.type == COLL] == [
            ("all-reduce", 4 * PARAMETERS), ("reduce-scatter", 32), ("barrier", 0)]
        (message,) = [node for node in nodes if node.type in (SEND, RECV)]
        assert message.type == (SEND, RECV)[rank]
        assert (message.get(peer), message.get("comm_tag"), message.get("comm_size")) == (
            1 - rank, 5, 12)
    assert replayed(tmp_path, 2)["total_us"] > 0


def test_functional_collectives_over_gloo_name_their_groups(tmp_path: Path) -> None:
    record_groups(tmp_path)
    for rank in range(4):
        nodes = [node for node in converted(tmp_path, rank) if node.type == COLL]
        pair = str(1 + rank // 2)
        assert [(node.get("pg_name"), node.get("comm_size")) for node in nodes] == [
            ("0", 4096), (pair, 8192), (pair, 2048)]
    assert replayed(tmp_path, 4)["total_us"] > 0


def test_a_plain_collective_over_gloo_beside_several_groups_is_refused(tmp_path: Path) -> None:
    record_groups(tmp_path, "c10d")
    done = run(tmp_path / "x", "--et", tmp_path / "et.*.json", "--kineto",
               tmp_path / "kineto.*.json")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "all" in done.stderr
    assert "does not name its group, and there are 2; allowed: one process group" in done.stderr
    assert not list(tmp_path.glob("x.*"))


def with_groups(folder: Path, rank: int) -> list[tuple[str, object, object]]:
    """Collective, group and bytes of each call, with the flight recorder's files."""
    nodes = converted(folder, rank, "--flight", folder / "flight.*.json")
    return [(COLLECTIVES[int(str(node.get("comm_type")))], node.get("pg_name"),
             node.get("comm_size")) for node in nodes if node.type == COLL]


def test_hsdp_over_gloo_shares_in_one_group_and_averages_in_another(tmp_path: Path) -> None:
    """Groups 1 and 2 are the job's own pairs, 3 and 4 replicate, 5 and 6 shard."""
    record_groups(tmp_path, "hsdp")
    nbytes = 64 * 16 * 4
    for rank in range(4):
        replicate, shard = str(3 + rank % 2), str(5 + rank // 2)
        assert with_groups(tmp_path, rank) == [
            ("all-gather", shard, nbytes / 2), ("reduce-scatter", shard, nbytes),
            ("all-reduce", replicate, nbytes / 2)]
    assert replayed(tmp_path, 4)["total_us"] > 0


def test_a_message_over_gloo_beside_several_groups_is_refused(tmp_path: Path) -> None:
    record_groups(tmp_path, "message")
    done = run(tmp_path / "x", "--et", tmp_path / "et.*.json", "--kineto",
               tmp_path / "kineto.*.json", "--flight", tmp_path / "flight.*.json")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "c10d::send does not name its group, and there are 2" in done.stderr
    assert not list(tmp_path.glob("x.*"))


def record_groups(folder: Path, *options: str) -> None:
    job = ROOT / "tests" / "sim" / "traces" / "pytorch_groups_job.py"
    ranks = start(job, [str(folder), *options], 4)
    said = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, said


def parts(nodes: list[Node]) -> tuple[int, int, int]:
    """Work before the one collective, beside it and after it."""
    (average,) = [node for node in nodes if node.type == COLL]
    last = average.data_deps[0]
    first = min(node.id for node in nodes if average.id in node.data_deps)
    work = [(node.id, node.duration_us) for node in nodes if node.type == COMP]
    return (sum(us for at, us in work if at <= last),
            sum(us for at, us in work if last < at < first),
            sum(us for at, us in work if at >= first))


def test_the_replay_waits_for_the_simulated_network_instead(recorded: Path) -> None:
    """A ring of two ranks sends halves twice; it begins when both have come."""
    ranks = [parts(converted(recorded, rank)) for rank in (0, 1)]
    answer = replayed(recorded, 2)
    average_us = 1e6 * 2 * (ALPHA_S + 4 * PARAMETERS / 2 * 8 / RATE_BPS)
    met_us = max(before for before, _, _ in ranks) + average_us
    ends = [max(met_us, before + beside) + after for before, beside, after in ranks]
    assert [rank["total_us"] for rank in answer["ranks"]] == pytest.approx(ends, abs=1)


# ---- a GPU's trace, by hand

def tensor(storage: int, elements: int = 1 << 18) -> list[Any]:
    return [storage + 100, storage, 0, elements, 4, "cuda:0"]


class Recorded:
    """Files of one rank: operators that launch kernels, and collectives of NCCL's."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.at = 0.0
        self.stream_at: dict[int, float] = {7: 0.0, 20: 0.0}
        ranks = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 2}]
        self.node("## process_group:init ##", [json.dumps(ranks)])

    def node(self, name: str, inputs: list[Any], **attributes: Any) -> int:
        number = len(self.nodes) + 1
        given = {"rf_id": number, **attributes}
        self.nodes.append({"id": number, "name": name, "ctrl_deps": 1,
                           "inputs": {"values": inputs}, "outputs": {"values": []},
                           "attrs": [{"name": key, "type": "", "value": value}
                                     for key, value in given.items()]})
        return number

    def span(self, kind: str, name: str, start: float, dur: float, **more: Any) -> None:
        self.events.append({"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1,
                            "ts": 1e12 + start, "dur": dur, "args": more})

    def operator(self, name: str, reads: list[Any], kernel: str, kernel_us: float, stream: int = 7,
                 **attributes: Any) -> None:
        """An operator of 10 us, whose call in its middle launches a kernel."""
        number = self.node(name, reads, **attributes)
        args = {"External id": 1000 + number}
        self.span("cpu_op", name, self.at, 10, **args, **{"Record function id": number})
        self.span("cuda_runtime", "cudaLaunchKernel", self.at + 4, 2, correlation=number, **args)
        start = max(self.stream_at[stream], self.at + 8)
        self.span("kernel", kernel, start, kernel_us, correlation=number, stream=stream, **args)
        self.stream_at[stream] = start + kernel_us
        self.at += 10

    def synchronize(self) -> None:
        end = max(self.stream_at.values())
        self.span("cuda_runtime", "cudaDeviceSynchronize", self.at, end - self.at,
                  correlation=9999)
        self.at = end

    def write(self, folder: Path, rank: int) -> None:
        (folder / f"et.{rank}.json").write_text(json.dumps(
            {"schema": "1.1.1-chakra.0.0.4", "nodes": self.nodes}))
        (folder / f"kineto.{rank}.json").write_text(json.dumps({"traceEvents": self.events}))


def step() -> Recorded:
    """Kernels of 100, 300 and 50 us; the all-reduce of what the first wrote beside the second."""
    made = Recorded()
    made.operator("aten::mm", [tensor(1)], "gemm", 100)
    made.operator("record_param_comms", [[tensor(1)], 1], "ncclDevKernel_AllReduce", 900, 20,
                  collective_name="allreduce", pg_name="0")
    made.operator("aten::mm", [tensor(2)], "gemm", 300)
    made.operator("aten::add_", [tensor(1)], "add", 50)
    made.synchronize()
    made.operator("aten::item", [tensor(3)], "copy", 5)
    return made


@pytest.fixture
def of_gpus(tmp_path: Path) -> Path:
    for rank in (0, 1):
        step().write(tmp_path, rank)
    return tmp_path


def test_kernels_wait_for_stream_launch_and_what_was_reduced(of_gpus: Path) -> None:
    nodes = converted(of_gpus)
    by_id = {node.id: node for node in nodes}
    first, second = (node for node in nodes if node.name == "gemm")
    (add,) = (node for node in nodes if node.name == "add")
    (average,) = (node for node in nodes if node.type == COLL)
    assert first.id in average.data_deps
    assert average.id not in second.data_deps
    assert {second.id, average.id} <= set(add.data_deps)
    assert average.duration_us == 900
    assert [by_id[parent].name for parent in first.data_deps] == ["cudaLaunchKernel"]


def test_the_recorded_time_of_nccls_kernel_gives_way_to_the_networks(of_gpus: Path) -> None:
    """Launch at 6 us, 100 us, the all-reduce or 300 us beside it, 50 us, launch, 5 us."""
    converted(of_gpus)
    nbytes = 4 << 18
    average_us = 1e6 * 2 * (ALPHA_S + nbytes / 2 * 8 / RATE_BPS)
    answer = replayed(of_gpus, 2)
    beside_us = max(average_us, 300)
    assert answer["total_us"] == pytest.approx(6 + 100 + beside_us + 50 + 6 + 5, abs=1)


@pytest.mark.parametrize(("rank", "name", "attribute", "peer"), [
    (0, "send", "comm_dst", 2), (2, "recv", "comm_src", 0)])
def test_nccls_messages_name_the_other_rank_of_all(tmp_path: Path, rank: int, name: str,
                                                   attribute: str, peer: int) -> None:
    """The record has the rank in the group, before the name (torch's ParamCommsUtils.hpp)."""
    made = Recorded()
    groups = [{"pg_name": "0", "ranks": []}, {"pg_name": "7", "ranks": [0, 2]}]
    made.nodes[0]["inputs"]["values"] = [json.dumps(groups)]
    made.operator("record_param_comms", [[tensor(1)], [3, True], ["7", "pp"], 1 - rank // 2, name,
                                         [], [], 0, 2, 2], "ncclDevKernel_SendRecv", 90, 20,
                  collective_name=name, pg_name="7")
    made.write(tmp_path, 0)
    (message,) = (node for node in converted(tmp_path) if node.type in (SEND, RECV))
    assert message.get(attribute) == peer
    assert message.get("comm_size") == 4 << 18


@pytest.mark.parametrize("other", [2, -1, None])
def test_a_message_to_no_rank_of_its_group_is_refused(tmp_path: Path, other: object) -> None:
    made = Recorded()
    groups = [{"pg_name": "0", "ranks": []}, {"pg_name": "7", "ranks": [0, 2]}]
    made.nodes[0]["inputs"]["values"] = [json.dumps(groups)]
    made.operator("record_param_comms", [[tensor(1)], 3, ["7", "pp"], other, "send"],
                  "ncclDevKernel_SendRecv", 90, 20, collective_name="send", pg_name="7")
    made.write(tmp_path, 0)
    done = run(tmp_path / "x", "--et", tmp_path / "et.*.json", "--kineto",
               tmp_path / "kineto.*.json")
    assert done.exit_code == 2
    assert "as the other rank" in done.stderr


# ---- cutting time

def test_a_piece_belongs_to_the_innermost_event() -> None:
    def event(start: float, end: float, name: str) -> Event:
        return Event(start, end, name, "cpu_op", 1, None, None, None, None)

    found = pieces([event(0, 10, "a"), event(2, 5, "b"), event(3, 4, "c"), event(12, 13, "d")])
    assert [(piece.start, piece.end, piece.event and piece.event.name) for piece in found] == [
        (0, 2, "a"), (2, 3, "b"), (3, 4, "c"), (4, 5, "b"), (5, 10, "a"), (10, 12, None),
        (12, 13, "d")]


def test_a_pause_is_without_what_others_did_meanwhile() -> None:
    assert without(0, 10, [(-1, 1), (3, 4), (3.5, 6), (9, 12)]) == [(1, 3), (6, 9)]


# ---- wrong files

def test_a_pattern_without_a_place_for_the_rank(of_gpus: Path) -> None:
    done = run(of_gpus / "x", "--et", of_gpus / "et.0.json", "--kineto", of_gpus / "kineto.*.json")
    assert done.exit_code == 2
    assert "no place for the rank" in done.stderr


def change(folder: Path, name: str, text: str | None) -> None:
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)


OTHER_RUN = json.dumps({"traceEvents": [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1,
     "args": {"Record function id": 4000}}]})
TWO_GROUPS = json.dumps([{"pg_name": "0", "ranks": []}, {"pg_name": "1", "ranks": [0]}])


@pytest.mark.parametrize(("name", "text", "sentence"), [
    ("kineto.1.json", None, "there is no file"),
    ("et.1.json", "{", "is not JSON"),
    ("et.1.json", "[]", "is no trace of PyTorch's"),
    ("et.1.json", "{}", "no execution trace of PyTorch's ExecutionTraceObserver"),
    ("et.1.json", '{"schema": "1.1.1-chakra.0.0.4", "nodes": [{}]}', "unregister_callback"),
    ("kineto.1.json", "{}", "is no trace of Kineto's"),
    ("kineto.1.json", '{"traceEvents": [{"ph": "X", "cat": "cpu_op"}]}', "export_chrome_trace"),
    ("kineto.1.json", '{"traceEvents": []}', "on_trace_ready"),
    ("kineto.1.json", OTHER_RUN, "the same steps of the same rank")])
def test_a_wrong_file_is_one_sentence_and_nothing_is_written(
        of_gpus: Path, name: str, text: str | None, sentence: str) -> None:
    change(of_gpus, name, text)
    done = run(of_gpus / "x", "--et", of_gpus / "et.*.json", "--kineto", of_gpus / "kineto.*.json")
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (of_gpus / "x.0.et").exists()


def test_one_pattern_asks_for_the_other(tmp_path: Path) -> None:
    done = run(tmp_path / "x", "--et", "et.*.json")
    assert done.exit_code == 2
    assert "--kineto is missing" in done.stderr


def test_gloo_with_several_groups_is_refused(tmp_path: Path) -> None:
    made = step()
    made.nodes[0]["inputs"]["values"] = [TWO_GROUPS]
    made.operator("gloo:all_reduce", [tensor(1)], "none", 1)
    for rank in (0, 1):
        made.write(tmp_path, rank)
    done = run(tmp_path / "x", "--et", tmp_path / "et.*.json", "--kineto",
               tmp_path / "kineto.*.json")
    assert done.exit_code == 2
    assert "does not name its group, and there are 2" in done.stderr


ET, KINETO = ({"schema": "1.1.1-chakra.0.0.4", "nodes": step().nodes},
              {"traceEvents": step().events})


@settings(max_examples=draws(300), deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.sampled_from((("et", ET), ("kineto", KINETO))).flatmap(lambda made: st.tuples(
    st.just(made[0]), st.just(made[1]), st.sampled_from(places(made[1])))), value=anything)
def test_any_value_at_any_place_is_a_trace_or_one_sentence(tmp_path: Path, made: Any,
                                                           value: Any) -> None:
    name, document, place = made
    for other, text in (("et", ET), ("kineto", KINETO)):
        (tmp_path / other).write_text(json.dumps(text))
    (tmp_path / name).write_text(json.dumps(changed(document, *place, value=value)))
    with one_sentence_at_most(TopologyError, str(tmp_path)):
        read_trace(write_trace(*convert(tmp_path / "et", tmp_path / "kineto")))


@pytest.mark.parametrize(("name", "text", "sentence"), [
    ("et.1.json", '{"schema":' + "[" * 200_000, "et.1.json: is not JSON: nested too deeply"),
    ("kineto.1.json", "9" * 5000, "kineto.1.json: is not JSON: a number has too many digits"),
    ("kineto.1.json", json.dumps(changed(KINETO, "traceEvents", 1, "ts", value=float("nan"))),
     "kineto.1.json: traceEvents[1].ts is NaN: a number"),
    ("kineto.1.json", json.dumps(changed(KINETO, "traceEvents", 1, "dur", value=-1)),
     "kineto.1.json: traceEvents[1].dur is -1: a number from 0 to"),
    ("et.1.json", json.dumps(changed(ET, "nodes", 0, "inputs", "values", value=["{"])),
     "et.1.json: holds no groups: it is no JSON"),
    ("et.1.json", json.dumps(ET).replace('"allreduce"', '"ponder"'),
     "et.1.json: holds the collective 'ponder'")])
def test_the_file_at_fault_and_the_place_in_it_are_named(of_gpus: Path, name: str, text: str,
                                                         sentence: str) -> None:
    change(of_gpus, name, text)
    done = run(of_gpus / "x", "--et", of_gpus / "et.*.json", "--kineto", of_gpus / "kineto.*.json")
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_a_file_that_unpacks_without_end_is_refused() -> None:
    with pytest.raises(FileError, match="too large"):
        unpacked(gzip.compress(bytes(1 << 20)), 1 << 10)
    assert unpacked(gzip.compress(b"a"), 1) == b"a"


@pytest.mark.parametrize(("flight", "sentence"), [
    ("", "is not JSON"), ("{}", "entries is missing; allowed: the JSON that PyTorch's flight"),
    ('{"entries": [{"time_created_ns": -1}]}', "entries[0].time_created_ns is -1"),
    ('{"entries": [{"time_created_ns": 1, "process_group": []}]}', "a name and a description"),
    ('{"entries": [{"time_created_ns": 1, "process_group": ["7", ""]}]}',
     "holds a call of the group '7'; allowed: groups of the same job: 0"),
    (None, "there is no file")])
def test_a_wrong_file_of_the_flight_recorder_is_one_sentence(of_gpus: Path, flight: str | None,
                                                             sentence: str) -> None:
    for rank in (0, 1):
        change(of_gpus, f"kineto.{rank}.json", json.dumps(
            {"traceEvents": step().events, "baseTimeNanoseconds": 10**18}))
    if flight is not None:
        change(of_gpus, "flight.0.json", flight)
        change(of_gpus, "flight.1.json", flight)
    done = run(of_gpus / "x", "--et", of_gpus / "et.*.json", "--kineto", of_gpus / "kineto.*.json",
               "--flight", of_gpus / "flight.*.json")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert sentence in done.stderr
    assert not (of_gpus / "x.0.et").exists()
