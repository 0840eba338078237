"""Sessions and engines under deterministic simulation: seeds hold, deliberate bugs do not pass."""

from __future__ import annotations

import subprocess

import pytest
from dst_programs import build_dst, build_engines, run_dst

SEEDS = 2000  # of each kind; each bug shows in as many
SHARE = 250  # in one test, so that workers share the work
BUGS = {
    "WRAP": "sequence numbers compared as plain integers",
    "NO_DEDUPE": "a chunk counts each time that it comes",
    "CREDIT_OFF_BY_ONE": "one message more than the credit travels",
    "CREDIT_LEAK": "buffers of messages that came early give no credit",
    "STREAM_CREDIT": "more frames are lent than there are",
    "EARLY_RELEASE": "a message counts as sent before it is acknowledged",
    "LEFT_BEHIND": "what came before the other end was done cannot be received after it",
    "STALE_EPOCH": "frames of an earlier epoch are taken",
    "PAYLOAD_UNCHECKED": "a payload counts though its CRC does not hold",
    "LOST_FORGOTTEN": "some lost chunks are not sent again",
    "FOUND_NOWHERE": "after a spurious RTO chunks are neither awaited nor sent again",
    "OPTIMISTIC_ACK": "packets that were never sent can be acknowledged",
    "TAG_UNCHECKED": "any tag holds",
    "LAP_UNTAGGED": "a frame of 2^31 packets ago has a tag that holds",
    "WINDOW_OFF_BY_ONE": "the window of chunks is one too wide",
    "SACK_OFF_BY_ONE": "the map of an ACK is read from the wrong bit on",
    "CAPACITY_UNCHECKED": "a message may be longer than its buffer",
    "NO_COOKIE": "every FIRST makes a session",
    "COOKIE_ANYWHERE": "a cookie is good from any address",
    "ANSWER_TWICE": "one FIRST is answered over and over",
    "DEAD_FOREVER": "a path that went black does not return",
    "LAST_FRAGMENT": "a chunk counts with its last fragment, whatever came before",
    "TORN_BUFFER": "what came of a message before its buffer counts as in the buffer",
    "BLACK_HOLE": "frames stay as long as they were where the path became narrow",
    "HASTY": "timeouts are shorter than a round trip",
}

ENGINE_BUGS = {
    "TAG_UNCHECKED": "any tag holds",
    "REWRITTEN": "a frame is written to while the card has it",
    "FREED_EARLY": "a frame that the card has yet is free",
    "RETURN_LEAK": "not all frames that the application gives back are free again",
    "LEFT_BEHIND": "what came before the other end was done cannot be received after it",
    "NOT_RECLAIMED": "a closed connection keeps its frames",
    "SHARED_LENT": "a frame is lent once for each of the frames that came in it",
    "RUN_CUT": "a connection that goes hides those behind it in the table",
}


@pytest.fixture(scope="module")
def dst(tmp_path_factory):
    return build_dst(tmp_path_factory.mktemp("dst") / "dst")


@pytest.mark.parametrize("first", range(0, SEEDS, SHARE))
def test_seeds_hold(dst, first):
    assert run_dst(dst, first, SHARE).startswith(f"{SHARE} seeds")


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    return build_engines(tmp_path_factory.mktemp("engines") / "engines")


@pytest.mark.parametrize("first", range(0, SEEDS, SHARE))
def test_seeds_of_engines_hold(engines, first):
    assert run_dst(engines, first, SHARE).startswith(f"{SHARE} seeds")


def test_every_field_can_be_changed(dst):
    done = run_dst(dst, "fields", 0, 1)
    assert int(done.split()[0]) > 5000


def test_a_seed_is_the_whole_of_a_run(dst):
    assert run_dst(dst, 8, "-v") == run_dst(dst, 8, "-v")


def shows(program):
    done = subprocess.run([str(program), "0", str(SEEDS)], capture_output=True, text=True,
                          check=False, timeout=600)
    return done.returncode != 0 and "replay: make dst " in done.stdout


@pytest.mark.parametrize("bug", BUGS)
def test_the_harness_catches(bug, tmp_path):
    assert shows(build_dst(tmp_path / "dst", bug)), BUGS[bug]


@pytest.mark.parametrize("bug", ENGINE_BUGS)
def test_the_harness_catches_in_engines(bug, tmp_path):
    assert shows(build_engines(tmp_path / "engines", bug)), ENGINE_BUGS[bug]
