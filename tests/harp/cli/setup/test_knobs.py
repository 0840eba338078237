"""Knobs: commands that are shown and run, and lines of the user that stay."""

from __future__ import annotations

import json

from click.testing import CliRunner

from harp.cli.setup import setup, state
from tests.harp.cli.setup.fake_host import CONF, run


def test_each_command_is_shown_before_it_runs(host):
    seen = []
    host.write, wrote = lambda path, text: (seen.append(list(host.commands)), wrote(path, text)), \
        host.write
    host.dies_at = "eth2 combined"
    result = CliRunner().invoke(setup, [], obj=host)
    assert host.commands[-1] == "ethtool -L eth2 combined 4"
    assert host.commands[-1] in result.output
    assert json.loads(host.read(state.FILE))["before"]["queues eth2"] == "combined 2"


def test_bytes_that_are_no_text_stay_in_the_settings(host):
    file = host.root / CONF[1:]
    file.parent.mkdir(parents=True)
    file.write_bytes(own := b"# r\xe9seau\r\nHARP_PATHS=4\n")
    assert "# r\ufffdseau" in run(host)
    assert file.read_bytes().endswith(own)
    run(host, "--undo")
    assert file.read_bytes() == own


def test_lines_of_the_user_stay(host):
    mine = "# mine\nHARP_TIMEOUT=60\n\n"
    host.file(CONF, mine.rstrip("\n") + "\n")
    before = host.everything()
    run(host)
    text = host.read(CONF)
    assert text.endswith("# mine\nHARP_TIMEOUT=60\n\n")
    host.store(CONF, text + "HARP_CC=swift\n")
    run(host, "--nics", "eth1")
    assert host.read(CONF).count("HARP_IFNAME") == 1
    host.store(CONF, text)
    run(host, "--undo")
    assert host.everything() == before
