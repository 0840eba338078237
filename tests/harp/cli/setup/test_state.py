"""The values of before: what is kept for undo, and files that do not say it."""

from __future__ import annotations

import pytest

from harp.cli.setup import state
from tests.harp.cli.setup.fake_host import fails, run


def test_undo_knows_what_was_there_before_the_first_time(host):
    before = host.everything()
    run(host, "--nics", "eth1..eth3", "--mtu", "8500")
    run(host, "--nics", "eth3,eth4", "--mtu", "9000", "--queues", "5")
    assert host.cards["eth3"].mtu == 9000
    assert host.queues["eth3"]["combined"] == (5, 64)
    run(host, "--undo")
    assert host.everything() == before


@pytest.mark.parametrize(("text", "why"), [
    ("", "it is no JSON: line 1, column 1"), ("{", "it is no JSON: line 1"),
    ("[]", "all of it is []: an object is possible"), ('{"before": 1}', "before is 1: an object"),
    ('{"before": {"mtu eth1": "15', "it is no JSON: line 1"),
    ("[" * 100_000, "it is no JSON of ours"),
    ('{"before": {"mtu eth1": [1]}}', "before.mtu eth1 is [1]: a text is possible"),
    ('{"before": {"colour eth1": "red"}}',
     "before has 'colour eth1', which harp setup does not change"),
    ("\udcff\udcfe\0", "it is no JSON")])
def test_a_file_that_does_not_say_what_was_there(host, text, why):
    host.store(state.FILE, text)
    for arguments in ([], ["--undo"]):
        said = fails(host, *arguments)
        assert f"{state.FILE} cannot be read, so undo is not possible: {why}" in said
        assert "repair it, or remove it" in said


def test_a_folder_in_the_place_of_the_file(host):
    (host.root / state.FILE[1:]).mkdir(parents=True)
    assert "so undo is not possible: it is a directory, or" in fails(host, "--undo")
