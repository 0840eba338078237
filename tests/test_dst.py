"""Sessions and engines under deterministic simulation: seeds hold, deliberate bugs do not pass."""

from __future__ import annotations

import subprocess

import pytest
from dst_programs import build_dst, build_engines, run_dst
from planted_bugs import IN_ENGINES, IN_SESSIONS

SEEDS = 2000  # of each kind; each bug shows in as many
SHARE = 250  # in one test, so that workers share the work


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


@pytest.mark.parametrize("bug", IN_SESSIONS)
def test_the_harness_catches(bug, tmp_path):
    assert shows(build_dst(tmp_path / "dst", IN_SESSIONS[bug])), IN_SESSIONS[bug].wrong


@pytest.mark.parametrize("bug", IN_ENGINES)
def test_the_harness_catches_in_engines(bug, tmp_path):
    assert shows(build_engines(tmp_path / "engines", IN_ENGINES[bug])), IN_ENGINES[bug].wrong
