"""The fluid engine and the stream engine in C, under AddressSanitizer and UBSan."""

from __future__ import annotations

import pytest

from lab.c_programs import SANITIZED, build, run
from tests.support import ROOT

ENGINE = [f"sim/network/flow/{name}.c" for name in ("fluid", "fluid_solve", "streams", "time_heap")]


@pytest.fixture(scope="module")
def stress(tmp_path_factory):
    flags = [*SANITIZED, f"-I{ROOT / 'sim/network/flow'}", "-Wl,--no-as-needed", "-lm"]
    return build(tmp_path_factory.mktemp("fluid") / "stress",
                 ["tests/sim/network/flow/fluid_stress.c", *ENGINE], flags)


@pytest.mark.parametrize("seed", range(1, 13))
def test_every_solution_is_certified_and_memory_is_sound(stress, seed):
    run(stress, str(seed), "500")
