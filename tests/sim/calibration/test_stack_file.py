"""The file of a stack that measurements give, and its sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.schema.parameters import StackSet, load_set
from tests.support.calibrate_runs import PAIR, run, save
from tests.support.nccl_samples import nccl_log, ring_time

if TYPE_CHECKING:
    from pathlib import Path


def test_the_file_that_is_written_is_a_stack_with_its_sources(tmp_path: Path) -> None:
    output = tmp_path / "out.yaml"
    path = save(tmp_path, nccl_log(ring_time(40e-6, 0.5e-9, ranks=2), PAIR, noise=0.03), "a b.log")
    first = run("--stack", "harp", "--from", path, "-o", output)
    text = output.read_bytes()
    stack = load_set(output, StackSet)
    assert stack.base == "harp"
    assert stack.cost_per_packet is None
    for figure in (stack.cost_per_byte, stack.start_latency):
        assert figure is not None
        assert figure.confidence == "measured"
        assert figure.source.startswith("a b.log (sha256 ")
        assert figure.low is not None
        assert figure.low < figure.value
    assert first.output == run("--stack", "harp", "--from", path, "-o", output).output
    assert output.read_bytes() == text
    assert run("--stack", "harp", "--from", path, "-o", "-").stdout.encode() == text


def test_rows_that_follow_no_single_cost_are_said_to(tmp_path: Path) -> None:
    def time_s(size: int) -> float:
        return 1e-4 + size * (1e-10 if size < 2**18 else 4e-9)

    sizes = [2**k for k in range(12, 26)]
    path = save(tmp_path, nccl_log(time_s, PAIR, sizes=sizes))
    text = " ".join(run("--stack", "harp", "--from", path).stdout.split())
    assert "another algorithm or protocol?" in text
