"""Hosts that are this one, by their names and addresses."""

from __future__ import annotations

import os
import socket

import pytest

from harp.cli.run.here import is_here, own_address
from tests.harp.cli.run.launched import run


@pytest.mark.skipif(os.geteuid() != 0, reason="a hosts file of its own needs root")
def test_a_name_of_this_host_needs_no_ssh(tmp_path):
    ssh, hosts = tmp_path / "ssh", tmp_path / "hosts"
    ssh.write_text("#!/bin/sh\necho ssh was asked >&2; exit 9\n")
    ssh.chmod(0o755)
    hosts.write_text("127.0.0.1 localhost\n127.0.0.7 worker-7\n")
    mounted = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    known = ("unshare", "--mount", "sh", "-c", mounted, "sh")
    ended = run("-H", "worker-7:2,127.0.0.1:1", "sh", "-c", "echo $RANK $GROUP_RANK $MASTER_ADDR",
                before=known, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [
        "[0] 0 0 127.0.0.1", "[1] 1 0 127.0.0.1", "[2] 2 1 127.0.0.1"]


def test_a_host_is_here_by_its_address_of_either_family():
    assert is_here("localhost")
    assert is_here("127.0.0.1")
    assert not is_here("192.0.2.7")
    assert not is_here("2001:db8::7")
    assert not is_here("me@localhost")
    assert not is_here("banana.invalid")
    assert not is_here("a" * 70)
    if socket.has_dualstack_ipv6():
        assert is_here("::1")
        assert own_address("::1") == "::1"
    assert own_address("127.0.0.1") == "127.0.0.1"
