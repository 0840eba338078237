"""The command that checks a configuration: each mistake is one sentence, with status 2."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from harp.angelptm.__main__ import main
from harp.cli.standalone import run_program
from tests.harp.angelptm.test_config import WRONG
from tests.support import ROOT


def check(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def test_there_are_thirty_mistakes_or_more():
    assert len({json.dumps(given) for given, _ in WRONG}) >= 30


@pytest.mark.parametrize(("given", "sentence"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_each_mistake_ends_with_status_2_and_one_sentence(tmp_path, given, sentence):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(given))
    done = check(file)
    assert done.exit_code == 2
    assert done.stdout == ""
    said, = done.stderr.splitlines()
    assert said.startswith(f"Error: {file}: ")
    assert re.search(sentence, said)


def test_a_configuration_is_described(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({
        "train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": True},
        "gradient_clipping": 0.5, "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": 2, "offload_optimizer": {
            "device": "nvme", "nvme_path": "/disk"}},
        "angelptm": {"device_bytes": 1 << 30, "device": "cpu"}}))
    done = check(file, "--ranks", 2)
    assert done.exit_code == 0
    for text in ("micro-batches of a step  4", "loss scale 65536", "AdamW, rate 0.001",
                 "trains on                cpu", "1,024.0 MiB", "/disk, io auto", "0.5"):
        assert text in done.stdout


def test_a_file_that_is_not_there_ends_without_a_traceback(tmp_path):
    done = subprocess.run([sys.executable, "-m", "harp.angelptm", tmp_path / "none.json"],
                          capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path}/none.json: No such file or directory\n"


def test_a_wrong_option_is_one_sentence(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["angelptm", "--rank", "2"])
    with pytest.raises(SystemExit) as ended:
        run_program(main, "python -m harp.angelptm")
    assert ended.value.code == 2
    assert capfd.readouterr().err.startswith("error: No such option")
