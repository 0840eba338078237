"""The examples of examples/angelptm, each by the one command that it names."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from lab.namespace import why_unusable
from tests.support import PATIENCE_S, ROOT
from tests.support.levels import long, long_except
from tests.support.torch_ranks import run_alone

EXAMPLES = ROOT / "examples" / "angelptm"
SMALL = ("--layers", "4", "--width", "256", "--batch", "1", "--device-mib", "24", "--host-mib",
         "16", "--device", "cpu")


def pipeline(*arguments):
    return subprocess.run(
        ["harp", "run", "-np", "2", sys.executable, EXAMPLES / "pipeline.py", "--layers", "2",
         "--width", "64", "--words", "256", "--length", "16", "--microbatches", "2", *arguments],
        text=True, capture_output=True, check=False, timeout=PATIENCE_S)


@pytest.mark.parametrize("script", long_except(["gpt.py", "t5.py"], "gpt.py"))
def test_a_model_beyond_device_and_host_learns(tmp_path, script):
    done = run_alone(EXAMPLES / script, *SMALL, "--steps", "4", "--disk", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ of the device, \d+ of the host, \d+ of the disk", done.stdout)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]


@long
def test_two_ranks_share_the_states(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "harp.cli.main", "run", "-np", "2", sys.executable,
         EXAMPLES / "gpt.py", *SMALL, "--steps", "3", "--disk", tmp_path], text=True,
        capture_output=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "states over 2 ranks" in done.stdout
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["--device-mib", "1"], "room for 0 pages, and the parameter words.weight alone needs 1"),
    (["--disk", "/nowhere"], "/nowhere: .* cannot be had on disk: No such file or directory")])
def test_an_unavailable_resource_is_one_sentence(arguments, sentence):
    done = run_alone(EXAMPLES / "gpt.py", *SMALL, *arguments)
    assert done.returncode == 2
    assert re.search(sentence, done.stderr)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("script", "arguments", "sentence"), [
    ("gpt.py", ["--width", "32"], "--width is 32: a multiple of 64 is possible"),
    ("t5.py", ["--width", "200"], "--width is 200: a multiple of 64 is possible"),
    ("pipeline.py", ["--width", "0"], "--width is 0: a multiple of 64 is possible"),
    ("pipeline.py", [], "there are no ranks: harp run -np 2 python examples/angelptm/pipeline.py"),
    ("moe.py", ["--tokens", "0"], "--tokens is 0: a number of at least 1 is possible")])
def test_an_impossible_call_is_refused(script, arguments, sentence):
    done = run_alone(EXAMPLES / script, *arguments)
    assert done.returncode == 2
    assert f"{script}: error: {sentence}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_experts_of_two_namespaces_learn():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "moe.py", "--tokens", "128"], text=True, capture_output=True,
        check=False, timeout=PATIENCE_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert losses[-1] < losses[0] / 2
    for way in ("direct", "once-per-host"):
        assert re.search(way + r": \d+ ms, forwards and backwards", done.stdout)


@long
def test_a_gpt_in_two_stages_learns():
    done = pipeline("--steps", "3")
    assert done.returncode == 0, done.stderr
    assert re.search(r"stage 0: \d+ operators, tokens to ", done.stdout)
    assert re.search(r"stage 1: \d+ operators, .* to loss", done.stdout)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


@long
def test_a_schedule_that_does_not_exist_is_one_sentence():
    done = pipeline("--schedule", "interleave")
    assert done.returncode != 0
    assert "pipeline.py: 'interleave' is no schedule; did you mean 'interleaved'?" in (
        done.stdout + done.stderr)
    assert "Traceback" not in done.stdout + done.stderr
