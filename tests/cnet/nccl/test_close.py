"""Closing of comms: what the other end hears, and what is said of a comm."""

from __future__ import annotations

import re

import pytest

from lab.namespace import why_unusable
from tests.cnet.nccl.test_plugin_under_client import PORTS, run
from tests.support.levels import long_except

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


@pytest.mark.parametrize("port", long_except(PORTS, "udp", "tcp"))
def test_a_peer_that_closes_is_an_error_long_before_it_would_count_as_silent(port: str) -> None:
    ended = run((port, port), "threads", "abort", HARP_TIMEOUT="600")
    assert ended.good, str(ended)
    assert "; the other end says so" in ended.said[0], str(ended)
    assert re.search(r'rank 0: .* saying "NCCL aborted it with \d+ requests under way"', str(ended))
    assert re.search(r"rank 1: .* NCCL aborts .* with \d+ requests under way", str(ended))


def test_statistics_show_what_a_comm_did_with_its_settings() -> None:
    ended = run(("udp", "udp"), "threads", "fifo", options=("--verbose",), HARP_STATS="1",
                HARP_PATHS="3", HARP_MTU="1000")
    assert ended.good, str(ended)
    lines = re.findall(r"NET/HARP : (sent to|received from) [\d.]+:\d+ on v1: (\d+) frames sent, "
                      r".* (\d+) placed, .*; segment (\d+), paths (\d+)", ended.logs[0])
    assert [words[0] for words in sorted(lines)] == ["received from", "sent to"], str(ended)
    for way, frames, placed, segment, paths in lines:
        assert int(frames if way == "sent to" else placed) > 0
        assert 800 < int(segment) < 1000
        assert paths == "3"
