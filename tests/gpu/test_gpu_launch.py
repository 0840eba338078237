"""The frame of `make test-gpu` around NCCL: it starts ranks apart, judges them, and keeps a log.

The ranks here are stand-ins; what real ones compute over gloo, `tests/gpu/run.py --rehearse` shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.namespace import why_unusable
from tests.gpu import launch
from tests.support import ROOT
from tests.support.levels import long

# Called as a python that has torch: with -c it says that there is a GPU and harp, or it makes the
# trainings, else it is a rank whose log has what NCCL would say.
STAND_IN = """#!{python}
import json, os, pathlib, sys
if sys.argv[1] == "-c":
    sys.exit({harp} if "harp" in sys.argv[2] else {cuda})
if sys.argv[1].endswith("trainings.py"):
    found = {{"lines": ["fp16: as it should be"], "problems": {wrong!r}}}
    sys.exit(pathlib.Path(sys.argv[2]).write_text(json.dumps(found)) == 0)
rank, store, out = sys.argv[2:5]
network = os.environ.get("NCCL_NET", "of LightCC")
print("NCCL INFO Using network", network)
port, flows = os.environ.get("HARP_PORT", "tcp"), os.environ.get("HARP_SOCKETS")
if port == "tcp":
    print("NET/HARP/0 : data over kernel TCP,", flows + " paths" if flows else "1 path")
print("NET/HARP/0 : v1, engine 1 of 1: %s: v1" % port)
losses = [(0.5).hex(), (0.25 if network != {liar!r} else 0.3).hex()]
pathlib.Path(out).write_text(json.dumps({{
    "losses": losses, "seconds": {{"training": 1}},
    "versions": {{"torch": "9.9", "gpu": "a stand-in"}}}}))
"""


def program(folder: Path, text: str) -> list[str]:
    path = folder / "rank.py"
    path.write_text("import json, os, pathlib, sys, time\nrank, store, out = sys.argv[1:4]\n"
                    "answer = {'losses': [(0.5).hex()]}\n" + text
                    + "\npathlib.Path(out).write_text(json.dumps(answer))\n")
    return [sys.executable, str(path)]


def test_ranks_seem_to_be_on_two_hosts(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_NET", "leftover")
    monkeypatch.setenv("HARP_PORT", "leftover")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ended = launch.run(launch.Network("one", {"HARP_PORT": "udp"}), program(tmp_path, """
answer["env"] = dict(os.environ)
answer["space"] = os.readlink("/proc/self/ns/net")
answer["links"] = [line.split(":")[0].strip() for line in open("/proc/net/dev")]
answer["store"] = store
"""), tmp_path / "job")
    assert ended.codes == [0, 0]
    first, second = ended.found
    assert first["env"]["NCCL_HOSTID"] != second["env"]["NCCL_HOSTID"]
    assert first["store"] == second["store"]
    for one in ended.found:
        assert one["env"]["OMP_NUM_THREADS"] == "1"
        assert one["env"]["HARP_PORT"] == "udp"
        assert "NCCL_NET" not in one["env"]
        assert one["env"]["HARP_IFNAME"] == one["env"]["NCCL_SOCKET_IFNAME"]
        assert one["env"]["HARP_IFNAME"].removeprefix("=") in one["links"]
    if not why_unusable():
        own = str(Path("/proc/self/ns/net").readlink())
        assert len({first["space"], second["space"], own}) == 3


def test_a_log_without_the_network_is_a_problem(tmp_path):
    network = launch.Network("harp-udp", {}, ("Using network HARP",))
    ended = launch.run(network, program(tmp_path, "print('NCCL INFO Using network Socket')"),
                       tmp_path / "job")
    assert ended.problems() == [f'harp-udp: rank {rank} does not say "Using network HARP"'
                                for rank in (0, 1)]


@pytest.mark.parametrize("fails", [0, 1])
def test_a_rank_that_fails_or_hangs_is_a_problem_and_is_gone_afterwards(tmp_path, monkeypatch,
                                                                        fails):
    monkeypatch.setattr(launch, "NOTICED_S", 0.5)
    hangs = 1 - fails
    ended = launch.run(launch.Network("n", {}), program(tmp_path, f"""
said = pathlib.Path({str(tmp_path)!r}, "{hangs}")
if rank == "{fails}":
    while not said.exists():
        time.sleep(0.01)
    sys.exit("broken")
said.with_suffix(".new").write_text(str(os.getpid()))
said.with_suffix(".new").rename(said)
while True:
    time.sleep(3600)
"""), tmp_path / "job")
    assert ended.problems() == [
        f"n: rank {rank} " + ("ended with status 1" if rank == fails else "did not end in time")
        for rank in (0, 1)]
    assert "broken" in ended.logs[fails]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / str(hangs)).read_text()), 0)


def test_losses_are_compared_to_the_last_bit():
    def ended(*losses: float) -> launch.Ended:
        return launch.Ended(launch.Network("n", {}), [0, 0], ["", ""],
                            [{"losses": [loss.hex() for loss in losses]}] * 2)
    reference = ended(2.0, 1.0, 0.1 + 0.2)
    assert ended(2.0, 1.0, 0.1 + 0.2).problems(reference) == []
    assert "n: rank 0's losses differ from those over n, first in step 2" in \
        ended(2.0, 1.0, 0.3).problems(reference)
    assert ended(2.0, 1.0).problems(reference)


def stand_in(folder: Path, *, cuda: int = 0, harp: int = 0, liar: str = "",
             wrong: tuple[str, ...] = ()) -> Path:
    path = folder / "python"
    path.write_text(STAND_IN.format(python=sys.executable, cuda=cuda, harp=harp, liar=liar,
                                    wrong=list(wrong)))
    path.chmod(0o755)
    return path


def run(python: Path, evidence: Path) -> subprocess.CompletedProcess[str]:
    tools = {**os.environ, "TORCH_PYTHON": str(python)}
    return subprocess.run([sys.executable, "-m", "tests.gpu.run", "--evidence", evidence,
                           "--seconds", "60"], cwd=ROOT,
                          capture_output=True, text=True, check=False, timeout=900, env=tools)


def test_all_networks_are_tried_and_what_was_found_is_kept(tmp_path):
    done = run(stand_in(tmp_path), tmp_path / "evidence")
    assert done.returncode == 0, done.stdout + done.stderr
    log, = (tmp_path / "evidence").iterdir()
    text = log.read_text()
    names = ["socket", "harp-udp", "harp-udp-inline", "lightcc", "hook",
             *([] if why_unusable() else ["harp-xdp"])]
    for name in names:
        assert f"{name}: all as it should be, " in text
    for found in ("torch: 9.9\n", "gpu: a stand-in\n", "Using network HARP", "all_reduce_perf: ",
                  "fp16: as it should be\n"):
        assert found in text


@long
def test_a_python_without_harp_tries_nccl_alone(tmp_path):
    done = run(stand_in(tmp_path, harp=1), tmp_path / "evidence")
    assert done.returncode == 0, done.stdout + done.stderr
    text = next((tmp_path / "evidence").iterdir()).read_text()
    for name in ("lightcc", "hook", "trainings"):
        assert f"{name}: not tried: " in text
    assert "harp-udp: all as it should be, " in text


@long
def test_a_problem_of_a_training_ends_with_status_1(tmp_path):
    done = run(stand_in(tmp_path, wrong=("fp16 spike: 1.2 of the loss",)), tmp_path / "evidence")
    assert done.returncode == 1
    assert "fp16 spike: 1.2 of the loss" in done.stdout


@long
def test_other_losses_over_harp_end_with_status_1(tmp_path):
    done = run(stand_in(tmp_path, liar="HARP"), tmp_path / "evidence")
    assert done.returncode == 1
    assert "harp-udp: rank 0's losses differ from those over socket, first in step 1" in done.stdout


@long
@pytest.mark.parametrize("only", ["fp16,pages", "compile"])
def test_trainings_are_right_on_a_cpu(tmp_path, only):
    pytest.importorskip("torch")
    out = tmp_path / "found.json"
    subprocess.run([sys.executable, ROOT / "tests" / "gpu" / "trainings.py", out, "--device", "cpu",
                    "--quick", "--only", only], check=True, timeout=600, cwd=tmp_path)
    found = json.loads(out.read_text())
    assert not found["problems"]
    assert len(found["lines"]) > len(only.split(","))


@pytest.mark.parametrize(("cuda", "why"), [(3, "sees no CUDA GPU"), (1, "no python here has")])
def test_without_a_gpu_it_says_so_and_is_no_failure(tmp_path, cuda, why):
    done = run(stand_in(tmp_path, cuda=cuda), tmp_path / "evidence")
    assert done.returncode == 0
    assert done.stdout.startswith("test-gpu: skipped: ")
    assert why in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert not (tmp_path / "evidence").exists()
