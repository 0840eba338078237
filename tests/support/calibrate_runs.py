"""The command ``python -m sim.calibrate`` for tests: run it, read its answer or its refusal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result

from sim.calibrate import main
from tests.support import ROOT
from tests.support.nccl_samples import nccl_log, ring_time

if TYPE_CHECKING:
    from pathlib import Path

TACO = ROOT / "topologies" / "taco-vgg16-v100-25g.yaml"
PAIR = ["node-0", "node-1"]
GOOD = nccl_log(ring_time(40e-6, 0.5e-9, ranks=2), PAIR)
"""A log of two hosts with a GPU each."""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def derived(path: Path, *more: object, stack: str = "harp") -> dict[str, dict[str, float]]:
    """The parameters that the command finds, by name."""
    result = run("--stack", stack, "--from", path, "--json", *more)
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.stdout)["parameters"]}


def save(folder: Path, content: str | bytes | list[Any], name: str = "in") -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refused(result: Result) -> str:
    """The one sentence of a refusal."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    return result.stderr
