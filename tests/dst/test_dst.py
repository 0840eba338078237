"""Sessions and engines under deterministic simulation: seeds hold, deliberate bugs do not pass."""

from __future__ import annotations

import subprocess

import pytest

from lab.c_programs import PLAIN, SANITIZED
from tests.dst.dst_programs import build_dst, build_engines, run_dst
from tests.support.levels import long_except
from tests.support.planted_bugs import IN_ENGINES, IN_SESSIONS, IN_TCP

SEEDS = 1000  # of each kind; `make dst` runs more
BUG_SEEDS = 2000  # each bug shows in as many
SHARE = 50  # in one test, so that workers share the work
# A quarter under sanitizers, as `make dst` runs all; the rest without takes a quarter of the time.
WAYS = [(SANITIZED if first < SEEDS // 4 else PLAIN, first) for first in range(0, SEEDS, SHARE)]
every_way = pytest.mark.parametrize(("flags", "first"), long_except(WAYS, WAYS[-1]),
                                    ids=[str(first) for _, first in WAYS])


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Builds a simulation, once by the same flags."""
    made = {}

    def program(how, flags):
        key = how, *flags
        if key not in made:
            made[key] = how(tmp_path_factory.mktemp("dst") / "dst", flags=flags)
        return made[key]
    return program


@every_way
def test_seeds_hold(programs, flags, first):
    assert run_dst(programs(build_dst, flags), first, SHARE).startswith(f"{SHARE} seeds")


@every_way
def test_seeds_of_engines_hold(programs, flags, first):
    assert run_dst(programs(build_engines, flags), first, SHARE).startswith(f"{SHARE} seeds")


@pytest.mark.parametrize(("flags", "first", "seeds"), long_except(
    [(SANITIZED, 0, 6), (SANITIZED, 6, 42), (PLAIN, 48, 80)], (SANITIZED, 0, 6)),
    ids=["quick", "sanitized", "fast"])
def test_seeds_over_tcp_hold(programs, flags, first, seeds):
    assert run_dst(programs(build_engines, flags), first, seeds, "tcp").startswith(f"{seeds} seeds")


@pytest.fixture(scope="module")
def dst(programs):
    return programs(build_dst, SANITIZED)


@pytest.mark.long
def test_every_field_can_be_changed(dst):
    done = run_dst(dst, "fields", 0, 1)
    assert int(done.split()[0]) > 5000


def test_a_seed_is_the_whole_of_a_run(dst):
    assert run_dst(dst, 8, "-v") == run_dst(dst, 8, "-v")

SHOWS_LATE = {"ANSWERED_ASTRAY": 330}
"""Seeds just before those that show a bug which none of the first hundreds shows."""


def shows(program, seeds, *more, first=0):
    done = subprocess.run([str(program), str(first), str(seeds), *more], capture_output=True,
                          text=True, check=False, timeout=1800)
    return done.returncode != 0 and "replay: make dst " in done.stdout


@pytest.mark.parametrize("bug", long_except(
    IN_SESSIONS, "PAYLOAD_UNCHECKED"))
def test_the_harness_catches(bug, tmp_path):
    assert shows(build_dst(tmp_path / "dst", IN_SESSIONS[bug]), BUG_SEEDS), IN_SESSIONS[bug].wrong


@pytest.mark.parametrize("bug", long_except(IN_ENGINES))
def test_the_harness_catches_in_engines(bug, tmp_path):
    program = build_engines(tmp_path / "engines", IN_ENGINES[bug])
    assert shows(program, BUG_SEEDS), IN_ENGINES[bug].wrong


@pytest.mark.parametrize("bug", long_except(IN_TCP))
def test_the_harness_catches_over_tcp(bug, tmp_path):
    program = build_engines(tmp_path / "engines", IN_TCP[bug])
    assert shows(program, 1000, "tcp", first=SHOWS_LATE.get(bug, 0)), IN_TCP[bug].wrong
