"""Transfers and phases: rows that are joined, moved and dropped."""

from __future__ import annotations

from harp.collectives.ir import Transfers


def test_transfers_of_nothing():
    assert len(Transfers.concat([])) == 0
    assert list(Transfers.empty().messages()) == []
