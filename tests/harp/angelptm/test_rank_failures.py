"""Failures of one rank: all ranks end with one sentence that names it."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

from tests.support.levels import long
from tests.support.torch_ranks import PATIENCE_S, start

RANK = Path(__file__).with_name("failing_rank.py")
RANKS = 3
SENTENCES = {
    "other_model": r"rank 2 has parameter more: \[3\], and rank 0 has none",
    "other_pages": "rank 2 has angelptm.page_bytes: 32768, and rank 0 has 16384",
    "other_stage": "rank 2 has zero_optimization.stage: 2, and rank 0 has 3",
    "other_counts": "rank 2 has gradient_accumulation_steps: 2, and rank 0 has 1",
    "wrong_key": "rank 2: the configuration: gradient_cliping is no key .* 'gradient_clipping'",
    "no_folder": "rank 2: .*/none: .* pages .* cannot be had on disk: No such file",
    "truncated_file": r"rank 2: .*: page \d+ cannot be read: the file ends before it",
    "full_disk": r"rank 2: .*: page \d+ cannot be written: No space left on device",
    "io_error": r"rank 2: .*: page \d+ cannot be (read|written): Input/output error",
    "raises": "rank 2: the data are at their end",
    "another_way": "rank 2 (calls|waits in)",  # whatever its worker had come to
    "never_comes": "rank 2 did not come|rank 2 does not answer",
    "killed": "rank 2 is gone|rank 2 does not answer",
}


@long
def test_all_ranks_name_the_one_at_fault(tmp_path):
    ranks = start(RANK, json.dumps({"backend": "lightcc", "folder": str(tmp_path), "only": []}),
                  RANKS)
    for rank in ranks[:-1]:
        out, error = rank.communicate(timeout=PATIENCE_S)
        assert rank.returncode == 0, error
        said = json.loads(out.splitlines()[-1])
        assert said.keys() == SENTENCES.keys()
        assert not {failure: text for failure, text in said.items()
                    if not re.fullmatch(f"RankError: .*({SENTENCES[failure]}).*", text)}
    ranks[-1].communicate(timeout=PATIENCE_S)
    assert ranks[-1].returncode == -signal.SIGKILL
