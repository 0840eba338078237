"""Every way in which a collective can fail, for every caller that torch has, and for ours.

Each caller says at the survivors why the group failed, in one line without words of torch's, and
the survivors' processes live. Before a failed future raised its error wherever C++ uses it, a rank
that died by SIGKILL amid a backward pass of DDP took all others down by SIGSEGV.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support.levels import long_except
from tests.support.torch_ranks import PATIENCE_S, start

RANK = Path(__file__).with_name("failure_rank.py")
RANKS = 3
QUICK = "plain_call future_callback ddp ddp_in_few_bits diloco fsdp2"
"""What calls by itself, in C++ and by a hook, and what learns from others; all are 28."""
CALLERS = f"""{QUICK}
    barrier objects messages async_work future_wait collected_futures
    ddp_joined ddp_compiled ddp_with_powersgd ddp_with_our_hook ddp_with_a_hook_of_its_own
    diloco_in_few_bits diloco_around_a_ring sparseloco fsdp1 zero_optimizer checkpoint
    tensor_parallel dtensor pipelining functional compiled"""
TIMED_OUT = "not over after 15 s, rank 2 did not come|no message .* within 15 s"
GONE = "rank [12] is gone"
"""Rank 1 may be the one that is seen to go: in a pipeline rank 0 knows of no other."""
SENTENCES = {
    "killed": GONE,
    "ended": GONE,
    "stopped": f"{GONE}|{TIMED_OUT}",
    "mismatched": f"ranks do not agree|{GONE}|{TIMED_OUT}",
    "destroyed": GONE,
    "aborted": f"aborted by rank 2|{GONE}",
    "out_of_memory": GONE,
    "come_late": f"{GONE}|{TIMED_OUT}",
}


@pytest.mark.parametrize(("way", "callers"), long_except(
    [("killed", QUICK), *((way, CALLERS) for way in SENTENCES)], ("killed", QUICK)),
    ids=["quick", *SENTENCES])
def test_survivors_of_a_failure_say_why_and_live(way, callers, tmp_path):
    ranks = start(RANK, [way, *callers.split()], RANKS, FOLDER=str(tmp_path))
    ended = [survivor.communicate(timeout=PATIENCE_S) for survivor in ranks[:-1]]
    ranks[-1].kill()
    ranks[-1].communicate()
    assert ranks[-1].returncode in {0, -signal.SIGKILL}
    for survivor, (out, error) in zip(ranks[:-1], ended, strict=True):
        assert survivor.returncode == 0, error
        said = json.loads(out.splitlines()[-1])
        assert set(said) == set(callers.split())
        assert not {caller: text for caller, text in said.items()
                    if not re.fullmatch(f"GroupError: .*({SENTENCES[way]}).*", text)}
