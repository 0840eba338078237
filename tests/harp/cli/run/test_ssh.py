"""ssh to other hosts, bounded in time."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from harp.cli.run.ssh import BOUNDS
from tests.harp.cli.run.launched import check_no_orphans, run


def test_other_hosts_are_reached_by_ssh_and_end_with_the_connection(tmp_path):
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    # Stands for ssh: takes its options and the host, and has a shell run what is left.
    ssh.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift 2; done\n'
                   'echo "to $1" >&2; shift; exec sh -c "$*"\n')
    ssh.chmod(0o755)
    path = f"{ssh.parent}:{os.environ['PATH']}"
    ended = run("-np", "3", "-H", "near:1,far:2", "--address", "127.0.0.1", "sh", "-c",
                'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK here, $HARP_X"', PATH=path, HARP_X="a  'b")
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [
        "[0] 0 of 3, 0 here, a  'b", "[1] 1 of 3, 0 here, a  'b", "[2] 2 of 3, 1 here, a  'b"]
    assert sorted(ended.stderr.splitlines()) == ["[0] to near", "[1] to far", "[2] to far"]
    own = tmp_path / "ranks"
    own.mkdir()
    ended = run("-H", "near:1,far:1", "--address", "127.0.0.1", "sh", "-c",
                f"sleep 500 & echo $! > {own}/$RANK; if [ $RANK = 1 ]; then exit 9; fi; wait",
                PATH=path)
    assert ended.returncode == 9, ended.stderr
    check_no_orphans(own)


@pytest.mark.parametrize(("known", "given"), [
    ("connecttimeout none\nserveraliveinterval 0\n",
     "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=30 far"),
    ("connecttimeout 3\nserveraliveinterval 0\n",
     "-o BatchMode=yes -o ServerAliveInterval=30 far"),
    ("connecttimeout 3\nserveraliveinterval 5\n", "-o BatchMode=yes far")])
def test_a_dead_host_ends_ssh_in_time_unless_the_user_wants_it_otherwise(tmp_path, known, given):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\ncase "$*" in "-p 2222 -G far") printf "$KNOWN";; '
                   '*) echo "$*" >&2; exit 255;; esac\n')
    ssh.chmod(0o755)
    ended = run("-H", "far", "--address", "127.0.0.1", "--ssh-port", "2222", "true",
                PATH=f"{tmp_path}:{os.environ['PATH']}", KNOWN=known)
    assert ended.returncode == 255
    assert ended.stderr.startswith(f"[0] -p 2222 {given} exec setsid")


@pytest.mark.skipif(not shutil.which("ssh"), reason="needs ssh")
def test_ssh_says_so_where_it_has_no_bound():
    said = subprocess.run(["ssh", "-F", "none", "-G", "far"], capture_output=True, text=True,
                          check=True).stdout
    assert set(BOUNDS) <= set(said.splitlines())


def test_a_host_without_ssh_gets_one_sentence(tmp_path):
    ended = run("-H", "far", "--address", "127.0.0.1", "true", PATH=str(tmp_path))
    assert ended.returncode == 2
    assert ended.stderr == ("error: ranks of far are started by ssh, which cannot be started here: "
                            "no such file or directory\n")
