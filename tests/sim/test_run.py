"""``python -m sim.run``: every option, every output opened, and one sentence for every mistake."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
from click.testing import CliRunner

from sim.answer.collective_bench import ALGORITHMS
from sim.run import COLLECTIVES, main
from tests.support.cluster_files import topology, write
from tests.support.levels import long

SCENARIOS = [{"name": "one", "stack": "ideal", "gpus": [1, 4]},
             {"name": "two", "stack": "kernel-tcp", "gpus": [4]}]
EXPECT = [{"scenario": "one", "gpus": 4, "images_per_s": 1.0, "kind": "measured", "within": "5%",
           "source": "nobody"}]


@pytest.fixture(autouse=True)
def _no_search_for_idle_keys(monkeypatch):
    """Leave out what tests/sim/answer/test_idle_keys.py is about: it takes longer than the rows."""
    monkeypatch.setattr("sim.answer.idle_keys.MOST_EVENTS", 0)


@pytest.fixture
def small(tmp_path):
    """A file of two scenarios and three rows."""
    return write(tmp_path, topology(hosts=2, gpus=2, scenarios=SCENARIOS))


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def run_once(*arguments):
    """Run it without the 64 further simulations of its intervals."""
    return run(*arguments, "--draws", "0")


def python(*arguments, **environment):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True,
                          check=False, env=os.environ | environment)


# ---- answers


def test_the_table(small):
    result = run(small)
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:2] for line in lines if line[:1] in (["one"], ["two"])] == [
        ["one", "1"], ["one", "4"], ["two", "4"]]


def test_one_scenario(small):
    names = [row["name"] for row in json.loads(
        run_once(small, "--scenario", "two", "--json", "-").stdout)["scenarios"]]
    assert names == ["two"]
    both = run_once(small, "--scenario", "two", "--scenario", "one", "--quiet", "--json", "-")
    assert [row["name"] for row in json.loads(both.stdout)["scenarios"]] == ["one", "one", "two"]


def test_explain_adds_up_to_the_step(small):
    document = json.loads(run_once(small, "--json", "-").stdout)
    for row in document["scenarios"]:
        assert sum(row["breakdown_ms"].values()) == pytest.approx(row["step_ms"], rel=1e-6)
        assert row["images_per_s"] == pytest.approx(128e3 * row["gpus"] / row["step_ms"], rel=1e-6)
    explained = run_once(small, "--explain").stdout
    assert "compute" in explained
    assert "selection" in explained


def test_every_output_opens(small, tmp_path):
    files = {option: tmp_path / f"out.{option}" for option in ("json", "csv", "png", "trace")}
    result = run(small, "--json", files["json"], "--csv", files["csv"], "--plot", files["png"],
                 "--trace", files["trace"])
    assert result.exit_code == 0
    document = json.loads(files["json"].read_text())
    rows = list(csv.DictReader(io.StringIO(files["csv"].read_text())))
    assert len(document["scenarios"]) == len(rows) == 3
    assert matplotlib.image.imread(files["png"]).std() > 0
    events = json.loads(files["trace"].read_text())["traceEvents"]
    tracks = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert any("gpu" in track for track in tracks)
    assert any(event["ph"] == "C" and "eth0->switch0" in event["name"] for event in events)


@pytest.mark.parametrize("option", ["--json", "--csv"])
def test_standard_output_holds_the_answer_alone(small, option):
    result = run_once(small, option, "-")
    assert result.exit_code == 0
    assert "one" in result.stderr
    if option == "--json":
        assert len(json.loads(result.stdout)["scenarios"]) == 3
    else:
        assert len(list(csv.reader(io.StringIO(result.stdout)))) == 4


def test_quiet_says_nothing(small, tmp_path):
    result = run_once(small, "--quiet", "--json", tmp_path / "a.json")
    assert (result.stdout, result.stderr) == ("", "")


def test_strict(tmp_path):
    path = write(tmp_path, topology(hosts=2, gpus=2, scenarios=SCENARIOS, expect=EXPECT))
    assert run_once(path).exit_code == 0
    failed = run_once(path, "--strict", "--quiet")
    assert failed.exit_code == 1
    assert failed.stderr.startswith("one, 4 GPUs: ")
    assert "allowed: 5.0%" in failed.stderr
    figure = json.loads(run_once(path, "--json", "-").stdout)["scenarios"][1]["images_per_s"]
    path = write(tmp_path, topology(hosts=2, gpus=2, scenarios=SCENARIOS,
                                    expect=[EXPECT[0] | {"images_per_s": figure}]))
    assert run_once(path, "--strict").exit_code == 0


@long
def test_the_same_file_and_seed_give_the_same_bytes(tmp_path):
    """Two processes with other hashes of sets and dictionaries; another seed takes other paths."""
    def answer(seed, hash_seed):
        given = topology(hosts=8, seed=seed, scenario={"sockets": 2},
                         fabric={"template": "leaf-spine", "leaves": 2, "spines": 4,
                                 "rate": "20Gbps"})
        path = write(tmp_path, given | {"scenarios": [
            given["scenarios"][0], given["scenarios"][0] | {"name": "t", "allreduce": "tree"}]})
        done = python("-m", "sim.run", path, "--json", "-", PYTHONHASHSEED=hash_seed)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert answer(1, "1") == answer(1, "2")
    assert len({answer(seed, "1").replace(f'"seed": {seed}', "") for seed in (1, 2, 3)}) > 1


def test_no_progress_bar_where_nobody_watches(small):
    done = python("-m", "sim.run", small, "--draws", "2")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


# ---- collectives


def test_collective_prints_nccl_tests_columns(small):
    result = run_once(small, "--collective", "allreduce", "--sizes", "8:1MiB:32")
    assert result.exit_code == 0
    for word in ("size", "count", "time", "algbw", "busbw", "ring", "tree", "halving-doubling",
                 "2d"):
        assert word in result.stdout
    sizes = [line.split()[0] for line in result.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert sizes == ["8", "256", "8192", "262144"]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_and_algorithm(small, name):
    result = run_once(small, "--collective", name, "--sizes", "1MiB", "--json", "-", "--quiet")
    rows = json.loads(result.stdout)["rows"]
    assert [row["algorithm"] for row in rows if not row["choice"]] == list(ALGORITHMS[name])
    assert all(row["time_us"] > 0 for row in rows)


def test_collective_takes_the_stack_and_the_scenarios_style(small):
    def microseconds(*options):
        result = run_once(small, "--collective", "broadcast", "--sizes", "8", "--csv", "-",
                          *options)
        (row,) = csv.DictReader(io.StringIO(result.stdout))
        return row

    plain = microseconds()
    assert microseconds("--scenario", "one") == plain
    assert microseconds("--stack", "ideal") == plain
    assert microseconds("--scenario", "two") == microseconds("--stack", "kernel-tcp") != plain


@pytest.mark.parametrize(("sizes", "says"), [
    ("8:4", "give FROM:TO:FACTOR"), ("abc", "'abc' is not a size"), ("8:64:1", "above 1"),
    ("64:8:2", "at most TO"), ("8:64:x", "'x' is not a number"), ("0:8:2", "above 0"),
    ("8:4GiB:1.0001", "more than 1000 sizes"), ("8 apples", "unit"), ("8:64:nan", "above 1"),
    ("-8", "above 0"), ("", "not a size"), ("::", "not a size")])
def test_sizes_that_are_none(small, sizes, says):
    refused(run(small, "--collective", "allreduce", f"--sizes={sizes}"), "--sizes", says)


# ---- mistakes


def refused(result, *says):
    """Status 2 and one line on standard error, nothing on standard output."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for text in says:
        assert text in result.stderr


@pytest.mark.parametrize(("options", "says"), [
    (["--scenario", "tow"], "did you mean 'two'?"),
    (["--fidelity", "flwo"], "did you mean 'flow'?"),
    (["--fidelity", "lab", "--draws", "3"], "--draws needs many runs, and"),
    (["--nonsense"], "--nonsense"),
    (["--jsno", "x"], "--json"),
    (["--json"], "--json"),
    (["--json", "/nowhere/x.json"], "there is no directory '/nowhere'"),
    (["--json", "-", "--csv", "-"], "already the target of --json"),
    (["--plot", "-"], "--plot"),
    (["--plot", "picture.txt"], ".png"),
    (["--trace", "-"], "--trace"),
    (["--sizes", "8"], "--collective"),
    (["--stack", "harp"], "--collective"),
    (["--collective", "allreduc"], "did you mean 'allreduce'?"),
    (["--collective", "allreduce", "--stack", "hrap"], "did you mean 'harp'?"),
    (["--collective", "allreduce", "--plot", "x.png"], "--plot"),
    (["--collective", "allreduce", "--trace", "x"], "--trace"),
    (["--collective", "allreduce", "--strict"], "--strict"),
    (["another.yaml"], "another.yaml"),
])
def test_wrong_options(small, tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    refused(run(small, *options), says)
    assert sorted(tmp_path.iterdir()) == before


def test_the_topology_is_never_overwritten(small):
    before = small.read_bytes()
    refused(run(small, "--json", small), "the input file")
    assert small.read_bytes() == before


@pytest.mark.parametrize(("content", "says"), [
    (None, "No such file"), (b"name: [", "t.yaml:"), (b"\x00", "t.yaml"), (b"", "t.yaml"),
    (b"name: x\n", "t.yaml:1:1")])
def test_wrong_files(tmp_path, content, says):
    path = tmp_path / "t.yaml"
    if content is not None:
        path.write_bytes(content)
    target = tmp_path / "out.json"
    refused(run(path, "--json", target), says)
    assert not target.exists()


def test_a_directory_is_no_topology(tmp_path):
    refused(run(tmp_path), "is a directory")


def test_no_file_at_all():
    refused(run(), "TOPOLOGY")


@pytest.mark.parametrize(("given", "says"), [
    ({"scenario": {"routing": "plan"}, "vpc": {"vnics": 2, "overlay": {}}},
     "scenarios[0].routing: 'plan' cannot steer an overlay"),
    ({"scenario": {"faults": ["f"]}, "faults": [
        {"name": "f", "kind": "link-down", "link": "h-0/eth0-switch0", "at": "1ms"}]},
     "training never ends: no path leads from h-"),
    ({"faults": [{"name": "f", "kind": "link-degrade", "link": "h-0/eth9-switch0", "at": "0s",
                  "factor": 0.5}]}, "did you mean 'h-0/eth0-switch0'?"),
])
def test_what_only_the_simulator_can_refuse(tmp_path, given, says):
    path = write(tmp_path, topology(**given))
    target = tmp_path / "out.json"
    refused(run(path, "--json", target), "t.yaml:", says)
    assert not target.exists()


def test_a_collective_needs_two_gpus(tmp_path):
    refused(run(write(tmp_path, topology(hosts=1)), "--collective", "allreduce"), "two GPUs")


def test_a_real_process_ends_the_same_way(tmp_path):
    done = python("-m", "sim.run", tmp_path / "none.yaml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_help_names_every_option():
    result = run("--help")
    assert result.exit_code == 0
    for option in ("--scenario", "--explain", "--json", "--csv", "--plot", "--trace",
                   "--collective", "--sizes", "--stack", "--strict", "--quiet"):
        assert option in result.stdout
    assert set(COLLECTIVES) == set(ALGORITHMS)


def test_importing_sim_is_light():
    heavy = ["numpy", "matplotlib", "pydantic", "rich", "yaml", "simpy", "networkx", "click"]
    code = f"import sys, sim; print([name for name in {heavy} if name in sys.modules])"
    assert python("-c", code).stdout.strip() == "[]"


def test_help_needs_no_simulator():
    code = ("import sys; from sim.run import main; "
            "print([n for n in ('numpy', 'matplotlib', 'pydantic', 'rich') if n in sys.modules])")
    assert python("-c", code).stdout.strip() == "[]"


def test_the_plot_shows_something_on_every_panel(small, tmp_path):
    """Not one colour from edge to edge in any quarter of the picture."""
    run_once(small, "--plot", tmp_path / "a.png", "--quiet")
    picture = matplotlib.image.imread(tmp_path / "a.png")[..., :3]
    for half in np.array_split(picture, 2, axis=0):
        for quarter in np.array_split(half, 2, axis=1):
            assert quarter.std() > 0


# ---- values set on the command line, help and version


def rate_of(*options):
    result = run_once(*options, "--quiet", "--json", "-")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(("change", "same_as"), [
    ("hosts[0].nics[0].rate=10Gbps", {"nic": {"rate": "10Gbps"}}),
    ("hosts.h.nics.eth.rate=10Gbps", {"nic": {"rate": "10Gbps"}}),
    ("scenarios[one].fp16=true", {"scenarios": [SCENARIOS[0] | {"fp16": True}, SCENARIOS[1]]}),
    ("scenarios[0].fusion.threshold=1MiB",
     {"scenarios": [SCENARIOS[0] | {"fusion": {"threshold": "1MiB"}}, SCENARIOS[1]]}),
    ("fabric={template: leaf-spine, leaves: 2, spines: 1}",
     {"fabric": {"template": "leaf-spine", "leaves": 2, "spines": 1}}),
    ("vpc={vnics: 2, host_rate: 5Gbps}", {"vpc": {"vnics": 2, "host_rate": "5Gbps"}}),
])
def test_a_value_is_set_as_if_it_stood_in_the_file(small, tmp_path, change, same_as):
    other = write(tmp_path, topology(hosts=2, gpus=2, **{"scenarios": SCENARIOS} | same_as),
                  "other.yaml")
    set_, written = (rate_of(path, *options)["scenarios"]
                     for path, options in ((small, ("--set", change)), (other, ())))
    assert set_ == written


def test_a_path_that_is_set_begins_where_the_command_runs(small, tmp_path, monkeypatch):
    """The shell completes it from there; a path in the file begins at the file's folder."""
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 512,
              "n_positions": 128}
    (here := tmp_path / "elsewhere").mkdir()
    (here / "config.json").write_text(json.dumps(config))
    (here / "vgg16").write_text("")
    monkeypatch.chdir(here)
    tokens = ("--set", "workload.sequence=128")
    assert rate_of(small, *tokens, "--set", "workload.model=config.json")["scenarios"]
    assert rate_of(small, "--set", "workload.model=vgg16")["scenarios"]
    missing = run(small, "--set", "workload.model=other.json", "--quiet")
    assert (missing.exit_code, "other.json" in missing.stderr) == (2, True)


def test_several_values_are_set_in_order(small):
    document = rate_of(small, "--set", "seed=2", "--set", "seed=3")
    assert (document["seed"], document["file"]["set"]) == (3, ["seed=2", "seed=3"])


def test_a_shared_alias_is_changed_in_one_place(tmp_path):
    text = write(tmp_path, topology(scenarios=SCENARIOS[:1])).read_text()
    text = text.replace("- name: one\n", "- &one\n  name: one\n", 1) + "- {<<: *one, name: two}\n"
    path = tmp_path / "alias.yaml"
    path.write_text(text.replace("gpus:\n  - 1\n  - 4", "gpus:\n  - 2"))
    names = [row["name"] for row in rate_of(path, "--set", "scenarios[one].name=uno")["scenarios"]]
    assert names == ["uno", "two"]


@pytest.mark.parametrize(("change", "says"), [
    ("hosts[0].nics[0].rate=25", "rate=25: hosts[0].nics[0].rate: 25 has no unit"),
    ("hosts[0].nics[0].rat=25Gbps", "did you mean 'rate'?"),
    ("hosts[7].count=2", "hosts has no entry '7'"),
    ("faults[0].at=1s", "faults: is not in the file, so that it has no entry 0"),
    ("scenarios[oen].stack=rdma", "did you mean 'one'?"),
    ("vpc.mtu=9000B", "--set vpc.mtu=9000B: vpc.vnics: is missing"),
    ("name.first=x", "name holds no further keys"),
    ("seed", "names no key and value"), ("=3", "names no key and value"),
    ("a..b=3", "names no key and value"), ("seed=[", "is not YAML"), ("seed={a: 1}", "a mapping"),
    ("seed=!!int 3", "tag"), ("seed=1\n---\n2", "a second document"),
    ("nonsense.key=3", "unknown key 'nonsense'"), ("seed=\x1b[31m", "--set seed="),
])
def test_a_wrong_change_names_the_argument(small, change, says):
    refused(run(small, "--set", change), "--set ", says)


def test_json_holds_the_hash_of_the_file_and_every_parameter(small):
    document = rate_of(small)
    assert document["file"] == {"sha256": hashlib.sha256(small.read_bytes()).hexdigest(), "set": []}
    figures = {each["name"]: each for each in document["parameters"]}
    assert {name.partition(".")[0] for name in figures} == {"ideal", "kernel-tcp", "free"}
    assert figures["ideal.start_latency"]["value"] == pytest.approx(10e-6)
    assert figures["ideal.start_latency"]["confidence"] == "assumed"
    tcp = figures["kernel-tcp.cost_per_byte"]
    assert tcp["low"] <= tcp["value"] <= tcp["high"]
    assert tcp["source"]
    timed = rate_of(small, "--collective", "allreduce", "--sizes", "8", "--stack", "harp")
    assert timed["file"] == document["file"]
    assert {each["name"].partition(".")[0] for each in timed["parameters"]} == {
        "ideal", "kernel-tcp", "free", "harp"}


@pytest.mark.parametrize("module", ["sim.run", "sim.calibrate"])
def test_help_and_version(module):
    for option, says in (("-h", "Usage:"), ("--help", "Usage:"), ("--version", "harp-stack 0.")):
        done = python("-m", module, option)
        assert (done.returncode, done.stderr) == (0, "")
        assert says in done.stdout
