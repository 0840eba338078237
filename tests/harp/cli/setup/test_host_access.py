"""Files that ``harp setup`` leaves behind: who may read them."""

from __future__ import annotations

import os

import pytest

from harp.cli.setup.host_access import Host


@pytest.fixture
def strict_umask():
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_settings_are_for_all_to_read_whatever_the_umask(tmp_path):
    Host(tmp_path).store("/etc/harp/harp.conf", "HARP_PORT=udp\n")
    file = tmp_path / "etc" / "harp" / "harp.conf"
    assert file.stat().st_mode & 0o777 == 0o644
    assert file.parent.stat().st_mode & 0o777 == 0o755


def test_a_file_that_is_there_keeps_its_mode(tmp_path):
    host = Host(tmp_path)
    host.store("/etc/harp/harp.conf", "HARP_PORT=udp\n")
    file = tmp_path / "etc" / "harp" / "harp.conf"
    file.chmod(0o640)
    host.store("/etc/harp/harp.conf", "HARP_PORT=xdp\n")
    assert file.read_text() == "HARP_PORT=xdp\n"
    assert file.stat().st_mode & 0o777 == 0o640
