"""Older versions of the interface to NCCL, under the client."""

from __future__ import annotations

import pytest

from lab.namespace import why_unusable
from tests.cnet.nccl.test_plugin_under_client import MODES, QUICK, passed, run
from tests.support.levels import long_except

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


@pytest.mark.parametrize("version", long_except(range(6, 12)))
def test_older_versions(version: int) -> None:
    """The oldest and the newest of them in all that they can do."""
    scenarios = () if version in (6, 11) else QUICK
    ended = run(("udp", "udp"), MODES[version % 2], *scenarios, options=(
        "--version", str(version), "--largest", str(4 << 20)))
    assert ended.good, str(ended)
    assert passed(ended) == {6: 21, 11: 22}.get(version, len(QUICK)), str(ended)
