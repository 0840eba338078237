"""Changes of a file's values: each file that is changed comes out of the one that was read."""

from __future__ import annotations

import pytest

from sim.schema.source import Source

TEXT = b"""
common: &nic {name: eth, rate: 1Gbps}
hosts: [{name: a, nics: [*nic, *nic]}, {name: b, nics: [*nic]}]
seed: 1
"""


@pytest.mark.parametrize("changes", [
    ["seed=2"], ["hosts[0].nics[1].rate=9Gbps"], ["hosts[b].nics[0].rate=9Gbps", "hosts[b].name=c"],
    ["new.key=1"], ["hosts=[]"], ["common.rate=9Gbps"]])
def test_changes_leave_the_file_as_it_was_read(changes: list[str]) -> None:
    base = Source.parse(TEXT, "x.yaml")
    before = base.root.plain()
    changed = base.changed(changes)
    assert changed.root.plain() == Source.parse(TEXT, "x.yaml", changes).root.plain() != before
    assert base.root.plain() == before
    assert (changed.changes, base.changes) == (tuple(changes), ())
    assert "seed" in base.root.keys
