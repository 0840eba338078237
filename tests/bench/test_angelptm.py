"""Peers of the subject `angelptm`: one that does not run is named with its error."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager

import click
import pytest
from rich.progress import Progress
from torch.utils.file_baton import FileBaton

from bench import peer_environment
from bench.angelptm import control_group, peer
from bench.angelptm.angelptm_rows import pipeline_s, planned_parameters
from bench.angelptm.sizes import CAP_BYTES, CAP_WIDTH, MICROBATCHES, PAGE_BYTES
from bench.arms import Bench, Sample
from bench.comparison import ArmRow, run_group
from bench.subject import PeerError, Subject, line
from tests.sim.step.test_mixture import one_f_one_b


def broken():
    raise PeerError("libaio.h is missing")


@contextmanager
def arms(_):
    yield {"ours": lambda: Sample(3.0), "theirs": broken, "others": lambda: Sample(2.0)}


def measure(**more):
    row = ArmRow("row", "a row", arms, "ours", **more)
    return run_group(arms, [row], Bench(rounds=2), Progress(disable=True))["row"]


def test_a_peer_that_does_not_run_is_named_with_its_error():
    found = measure(against=("theirs",), target=1.1)
    assert (found["value"], found["ratio"], found["ok"]) == (3.0, None, False)
    assert found["errors"] == {"theirs": "libaio.h is missing"}
    assert line(found).splitlines()[1:] == ["  theirs does not run: libaio.h is missing"]


def test_a_row_with_another_peer_is_judged_by_that_one():
    found = measure(against=("theirs", "others"), target=1.1)
    assert (found["ratio"], found["reference_is"], found["ok"]) == (1.5, "others", True)
    assert found["errors"] == {"theirs": "libaio.h is missing"}


def test_an_environment_that_cannot_be_made_is_the_peers_error(monkeypatch, tmp_path):
    """The registry's own sentence is what the row says."""
    monkeypatch.setattr(peer_environment, "folder_of", lambda name: tmp_path / name)
    monkeypatch.setattr(peer_environment, "run", lambda command, *_: subprocess.CompletedProcess(
        command, 1, "", "warning: slow\n[rank0]: ERROR: No matching distribution found\n\n"))
    with pytest.raises(PeerError, match=r"^ERROR: No matching distribution found$"):
        peer_environment.installed("other", "other==1")


def test_an_environment_is_made_once_for_what_it_has(monkeypatch, tmp_path):
    """Another release, or one that was not made to its end, is made anew."""
    asked = []

    def run(command, seconds, variables):
        asked.append([str(word) for word in command[1:]])
        (tmp_path / "other").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(peer_environment, "folder_of", lambda name: tmp_path / name)
    monkeypatch.setattr(peer_environment, "run", run)
    make = peer_environment.installed.__wrapped__
    for release in ("1", "1", "2"):
        assert make("other", f"other=={release} --no-deps", "more") == (
            tmp_path / "other" / "bin" / "python")
    venv = ["-m", "venv", "--clear", str(tmp_path / "other")]
    assert asked == [words for release in "12" for words in (
        venv, ["-m", "pip", "install", "-q", f"other=={release}", "--no-deps"],
        ["-m", "pip", "install", "-q", "more"])]


def test_a_lock_without_its_process_is_removed_and_a_held_one_stays(monkeypatch, tmp_path):
    """DeepSpeed's compilation waits for ever for the lock of one that was killed."""
    monkeypatch.setattr(peer, "FOLDER", tmp_path)
    stale, held = (tmp_path / "kernels" / name / "lock" for name in ("async_io", "cpu_adam"))
    for lock in (stale, held):
        lock.parent.mkdir(parents=True)
    stale.touch()
    baton = FileBaton(str(held))
    assert baton.try_acquire()
    peer.clear_stale_locks()
    assert (stale.exists(), held.exists()) == (False, True)
    baton.release()


@pytest.mark.parametrize("most", [1, 5, 77, 192])
def test_the_largest_model_is_found_by_halving(monkeypatch, most):
    """A model of more layers than the bound of the search is never tried."""
    tried = []

    def trains(_, layers, before):
        tried.append(layers)
        return "" if layers <= most or not before else "killed"

    monkeypatch.setattr(control_group, "trains", trains)
    monkeypatch.setattr(control_group, "control_group", lambda *_: _inside())
    control_group.largest.cache_clear()
    assert control_group.largest("harp") == most * control_group.LAYER * 1e-6
    control_group.largest.cache_clear()
    assert len(tried) <= 9
    assert max(tried) * control_group.LEAST_BYTES * control_group.LAYER <= control_group.LIMIT_BYTES


def test_the_largest_model_by_bytes_alone_is_the_closed_form():
    """Two kinds of 2 bytes and three of 4; one page of the host stays free to move others."""
    def pages(layers):
        elements = layers * CAP_WIDTH ** 2
        return 2 * -(-2 * elements // PAGE_BYTES) + 3 * -(-4 * elements // PAGE_BYTES)

    layers = planned_parameters() // CAP_WIDTH ** 2
    assert pages(layers) <= 2 * CAP_BYTES // PAGE_BYTES - 1 < pages(layers + 1)


@pytest.mark.parametrize(("both", "messages"), [([0.5, 0.5], 1), ([0.6, 0.4], 1), ([0.3, 0.7], 1),
                                                ([0.25, 0.5, 0.25], 2)])
def test_a_pipelines_prediction_is_that_of_its_schedule(both, messages):
    forward = [share / 3 for share in both]
    plan = {"forward": forward, "both": both, "sent_bytes": 5.0, "tied_bytes": 70.0,
            "gradient_bytes": 1100.0}
    backward = [2 * share / 3 for share in both]
    walked = one_f_one_b(len(both), MICROBATCHES, forward, backward)
    found = pipeline_s(plan, MICROBATCHES, MICROBATCHES, 11.0, 7.0)
    sent = messages * MICROBATCHES * 5.0 + 70.0
    assert found - sent / 7.0 - 1100.0 / 11.0 == pytest.approx(walked, rel=0.04)


def walked_by_turns(forward, backward, alone):
    """The duration of 1F1B on two stages, of which one that computes alone takes this share."""
    orders = [["f", "f", *"bf" * (MICROBATCHES - 2), "b", "b"], [*"fb" * MICROBATCHES]]
    times, done = {"f": forward, "b": backward}, [{"f": 0, "b": 0}, {"f": 0, "b": 0}]
    left, now = [forward[0], forward[1]], 0.0

    def may_run(stage, kind):
        first = (stage, kind) in {(0, "f"), (1, "b")}  # the other stage's comes behind it
        return first or done[stage][kind] < done[1 - stage][kind]

    while any(orders):
        busy = [stage for stage, order in enumerate(orders) if order and may_run(stage, order[0])]
        passed = min(left[stage] for stage in busy)
        now += passed * (alone if len(busy) == 1 else 1.0)
        for stage in busy:
            left[stage] -= passed
            if left[stage] < 1e-12:
                done[stage][orders[stage].pop(0)] += 1
                left[stage] = times[orders[stage][0]][stage] if orders[stage] else 0.0
    return now


@pytest.mark.parametrize("alone", [0.6, 0.8, 1.0])
@pytest.mark.parametrize("first", [0.4, 0.5, 0.65])
def test_a_stage_that_waits_leaves_the_memory_to_the_other(first, alone):
    both = [first, 1 - first]
    forward, backward = ([share * each for each in both] for share in (1 / 3, 2 / 3))
    plan = {"forward": forward, "both": both, "sent_bytes": 0.0, "tied_bytes": 0.0,
            "gradient_bytes": 0.0}
    found = pipeline_s(plan, MICROBATCHES, alone * MICROBATCHES, 1.0, 1.0)
    assert found == pytest.approx(walked_by_turns(forward, backward, alone))


@contextmanager
def _inside():
    yield ["sh"]


def test_a_subject_with_a_row_that_has_no_peer_ends_with_status_1():
    row = ArmRow("row", "a row", arms, "ours", against=("theirs",))
    command = Subject("About.", {"row": row}, lambda _: [measure(against=("theirs",))]).command("x")
    with pytest.raises(SystemExit) as ended, click.Context(command).scope():
        command.main([], standalone_mode=False)
    assert ended.value.code == 1


def test_the_tuners_setting_becomes_the_keys_of_a_configuration():
    said = """Best performance (GB/sec): read =  1.45, write =  3.09
{
   "aio": {
      "single_submit": "false", "overlap_events": "true", "num_threads": 2, "queue_depth": 32,
      "block_size": 1048576
   }
}
"""
    assert peer.read_tuning(said) == {
        "single_submit": False, "overlap_events": True, "intra_op_parallelism": 2,
        "queue_depth": 32, "block_size": 1048576}
    with pytest.raises(PeerError, match="apt install libaio-dev"):
        peer.read_tuning("Failing.\nPossible fix: apt install libaio-dev.\n")
