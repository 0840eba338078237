"""The packet network in C, under AddressSanitizer and UBSan."""

from __future__ import annotations

import pytest

from lab.c_programs import SANITIZED, build, library, run
from tests.support import ROOT
from tests.support.levels import long_except

PACKET = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "sim/network/packet").glob("*.c"))


@pytest.fixture(scope="module")
def stress(tmp_path_factory):
    flags = [*SANITIZED, f"-I{ROOT / 'sim/network/packet'}"]
    return build(tmp_path_factory.mktemp("packet") / "stress",
                 ["tests/sim/network/packet/packet_stress.c", *PACKET, str(library())], flags)


@pytest.mark.parametrize("seed", long_except(range(1, 25), *range(1, 9)))
def test_everything_arrives_and_memory_is_sound(stress, tmp_path, seed):
    run(stress, str(seed), str(tmp_path / "link.pcap"))
