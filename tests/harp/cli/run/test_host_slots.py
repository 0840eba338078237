"""Hosts and slots from a list, a file and a script."""

from __future__ import annotations

import click
import pytest

from harp.cli.run.host_slots import FoundHosts, parse_hosts, read_hostfile


def test_a_hostfile_is_read_in_all_three_spellings(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# two hosts\na slots=4\nb:2\n\nc\n")
    assert read_hostfile(path) == [("a", 4), ("b", 2), ("c", 1)]


def test_other_words_of_open_mpi_and_mpich_in_a_hostfile_change_nothing(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a slots=4 max_slots=8\nb:2 binding=cpu\n::1 slots=2\n")
    assert read_hostfile(path) == [("a", 4), ("b", 2), ("::1", 2)]


def test_a_mark_at_the_front_is_no_part_of_a_name(tmp_path):
    path = tmp_path / "hosts"
    path.write_bytes(b"\xef\xbb\xbfa slots=4\r\nb:2\r\n")
    assert read_hostfile(path) == [("a", 4), ("b", 2)]
    path.write_bytes(b"#!/bin/sh\nprintf '\\357\\273\\277a:4\\r\\n'\n")
    path.chmod(0o755)
    found = FoundHosts(path)
    assert found.wait_for(1, 60.0) == [("a", 4)]
    found.close()


@pytest.mark.parametrize(("text", "host", "slots"), [
    ("fd00::2", "fd00::2", 1), ("[fd00::2]", "fd00::2", 1), ("[fd00::2]:4", "fd00::2", 4),
    ("::1", "::1", 1), ("[::1]:2", "::1", 2), ("fe80::1%eth0", "fe80::1%eth0", 1),
    ("1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8", 1), ("1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7:8", 9),
    ("192.0.2.7:4", "192.0.2.7", 4), ("me@node-1.example:2", "me@node-1.example", 2)])
def test_an_address_of_either_family_is_read_alike_in_a_list_and_a_file(tmp_path, text, host,
                                                                        slots):
    path = tmp_path / "hosts"
    path.write_text(f"{text}\n")
    assert parse_hosts(text) == read_hostfile(path) == [(host, slots)]
    path.write_text(f"[{host}] slots=7\n")
    assert read_hostfile(path) == [(host, 7)]


@pytest.mark.parametrize(("text", "sentence"), [
    (b"a\nlocalhost slot=2\n", "{path}:2: 'slot=2' is unknown; write HOST slots=N; did you "
     "mean slots=2?"),
    (b"localhost slots=two\n", "{path}:1: 'slots=two' is not a number of slots; write slots=N "
     "with N at least 1"),
    (b"localhost slots=0\n", "{path}:1: 'slots=0' is not a number of slots"),
    (b"localhost 2\n", "{path}:1: '2' is unknown; write HOST slots=N"),
    (b"\na:x\n", "{path}:2: 'a:x' is not a host; write HOST:SLOTS with at least one slot"),
    (b"a\nb\na:2\n", "{path}:3: a is already listed above"),
    (b"a:2 slots=4\n", "{path}:1: 'a:2' is not a host; write HOST slots=N"),
    (b"a:22:4\n", "{path}:1: 'a:22:4' is not a host; write HOST:SLOTS with at least one slot; the "
     "port of ssh is --ssh-port"),
    (b"fd00::2:4\n", "{path}:1: 'fd00::2:4' can be read as one address or as fd00::2 with 4 slots; "
     "write [fd00::2:4] or [fd00::2]:4"),
    (b"a\0b slots=1\n", "{path}:1: 'a\\x00b' is not a host"),
    (b"-oPort=1 slots=1\n", "{path}:1: '-oPort=1' is not a host"),
    (b"\xff\xfea\0\n\0", "--hostfile {path} cannot be read: it is not text"),
    (b"# none\n", "--hostfile {path} names no host; write lines HOST slots=N"),
    (b"\x80\xff\0", "--hostfile {path} cannot be read: it is not text")])
def test_a_mistake_in_a_hostfile_is_named_with_its_line(tmp_path, harp_here, text, sentence):
    path = tmp_path / "hosts"
    path.write_bytes(text)
    done = harp_here("run", "--hostfile", str(path), "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {sentence.format(path=path)}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("text", "sentence"), [
    ("no script", "cannot run: Exec format error"),
    ("#!/nowhere/sh\n", "cannot run: No such file or directory"),
    ("#!/bin/sh\necho no >&2; echo cluster >&2; exit 3\n", "ended with status 3: cluster"),
    ("#!/bin/sh\nkill -9 $$\n", "ended with SIGKILL"),
    ("#!/bin/sh\n", "printed a line that names no host: '' names no host"),
    ("#!/bin/sh\nprintf 'a:\\377'\n",
     "printed a line that names no host: 'a:\N{REPLACEMENT CHARACTER}'")])
def test_a_script_that_finds_no_hosts_is_reported_once(tmp_path, capfd, text, sentence):
    script = tmp_path / "hosts.sh"
    script.write_text(text)
    script.chmod(0o755)
    found = FoundHosts(script)
    assert found.wait_for(1, 3.0) == []
    found.close()
    said, = capfd.readouterr().err.splitlines()
    assert said.startswith(f"warning: --host-discovery-script {script} {sentence}")


@pytest.mark.parametrize("text", ["", ",", "a:0", "a:x", ":3", "a:1,a:2", "[::1", "[]:2", "[::1]2",
                                  "[::1]:", "a b:1", "-oPort=1:1", "\0:1", "http://a:1"])
def test_hosts_that_cannot_be_are_refused(text):
    with pytest.raises(click.BadParameter):
        parse_hosts(text)
