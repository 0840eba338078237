"""``harp run`` starts processes with their ranks and ends them together."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from harp.cli.run.here import is_here, own_address
from harp.cli.run.host_slots import FoundHosts, parse_hosts, read_hostfile
from harp.cli.run.processes import place_ranks, variables
from harp.cli.run.ssh import BOUNDS

PATIENCE_S = 300
HARP = [sys.executable, "-m", "harp.cli.main", "run"]


def run(*arguments, before=(), **variables):
    return subprocess.run([*before, *HARP, *arguments], text=True, capture_output=True, check=False,
                          timeout=PATIENCE_S, env={**os.environ, **variables})


def test_hosts_are_filled_in_their_order():
    ranks = place_ranks([("a", 2), ("b", 4), ("c", 1)], 5)
    assert [(rank.host, rank.rank, rank.local_rank, rank.local_size) for rank in ranks] == [
        ("a", 0, 0, 2), ("a", 1, 1, 2), ("b", 2, 0, 3), ("b", 3, 1, 3), ("b", 4, 2, 3)]
    found = variables(ranks[3], ranks, "a", 5000)
    assert found["RANK"] == found["HOROVOD_RANK"] == "3"
    assert found["WORLD_SIZE"] == found["HOROVOD_SIZE"] == "5"
    assert found["LOCAL_RANK"] == found["HOROVOD_LOCAL_RANK"] == "1"
    assert (found["HOROVOD_CROSS_RANK"], found["HOROVOD_CROSS_SIZE"]) == ("1", "2")
    assert variables(ranks[4], ranks, "a", 5000)["HOROVOD_CROSS_SIZE"] == "1"


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


def test_a_file_that_is_not_executable_is_no_program(tmp_path, harp_here):
    path = tmp_path / "train.py"
    path.write_text("")
    done = harp_here("run", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"'{path}' is not executable; use chmod +x" in done.stderr


@pytest.mark.parametrize("text", ["", ",", "a:0", "a:x", ":3", "a:1,a:2", "[::1", "[]:2", "[::1]2",
                                  "[::1]:", "a b:1", "-oPort=1:1", "\0:1", "http://a:1"])
def test_hosts_that_cannot_be_are_refused(text):
    with pytest.raises(click.BadParameter):
        parse_hosts(text)


def test_output_has_the_rank_and_the_environment_of_both_launchers():
    ended = run("-np", "2", "sh", "-c", "echo $RANK $HOROVOD_SIZE $LOCAL_RANK; echo to $RANK >&2")
    assert ended.returncode == 0
    assert sorted(ended.stdout.splitlines()) == ["[0] 0 2 0", "[1] 1 2 1"]
    assert sorted(ended.stderr.splitlines()) == ["[0] to 0", "[1] to 1"]


def test_one_dead_rank_ends_all_with_its_status(tmp_path):
    ended = run("-np", "3", "sh", "-c",
                f'sleep 500 & echo $! > {tmp_path}/$RANK; if [ $RANK = 1 ]; then exit 7; fi; wait')
    assert ended.returncode == 7
    assert "rank 1 on localhost ended with status 7; the others were ended" in ended.stderr
    check_no_orphans(tmp_path)


@pytest.mark.parametrize(("own", "named", "status"), [
    ("exit 7", "rank 1 on localhost ended with status 7", 7),
    ("exit 0", "rank 0 on localhost ended with status 1", 1)])
def test_the_rank_that_others_call_gone_is_named_though_it_ends_last(tmp_path, own, named, status):
    first = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/0; "
    ended = run("-np", "2", "sh", "-c",
                f"if [ $RANK = 0 ]; then {first} echo 'call 2: rank 1 is gone: closed' >&2; "
                f"exit 1; fi; until [ -e {tmp_path}/0 ]; do sleep 0.01; done; "
                f"while kill -0 $(cat {tmp_path}/0) 2>/dev/null; do sleep 0.01; done; {own}")
    assert ended.returncode == status
    assert ended.stderr.splitlines()[1:] == [f"error: {named}"]


def test_ranks_that_call_each_other_gone_are_no_riddle():
    ended = run("-np", "2", "sh", "-c", "echo rank $((1 - RANK)) is gone >&2; exit 3")
    assert ended.returncode == 3
    assert " on localhost ended with status 3" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGRTMIN + 1, signal.SIGRTMAX - 1, signal.SIGABRT])
def test_a_rank_may_die_of_any_signal(number):
    ended = run("-np", "2", "sh", "-c", f"[ $RANK = 0 ] || kill -{number} $$; sleep 500")
    assert ended.returncode == 128 + number
    name = (signal.Signals(number).name if number == signal.SIGABRT
            else f"SIGRTMIN+{number - signal.SIGRTMIN}")
    assert ended.stderr == f"error: rank 1 on localhost ended with {name}; the others were ended\n"


def without_a_reader():
    end, output = os.pipe()
    os.close(end)
    return output


@pytest.mark.parametrize(("opened", "why"), [
    (without_a_reader, "broken pipe"),
    (lambda: os.open("/dev/full", os.O_WRONLY), "no space left on device")])
def test_ranks_do_not_wait_for_an_output_that_is_gone(opened, why):
    output = opened()
    ended = subprocess.run([*HARP, "-np", "2", "sh", "-c",
                            "seq 100000; [ $RANK = 0 ] || sleep 500"], stdout=output, text=True,
                           stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S)
    os.close(output)
    assert ended.returncode == 1
    assert ended.stderr == (f"error: the output of the ranks cannot be written: {why}; they were "
                            "ended\n")


def test_output_is_passed_on_byte_by_byte():
    ended = subprocess.run([*HARP, "-np", "1", "printf", r"a\xff\xc3\xa4\r\0b"], check=False,
                           capture_output=True, timeout=PATIENCE_S,
                           env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (ended.returncode, ended.stdout) == (0, b"[0] a\xff\xc3\xa4\r\0b\n"), ended.stderr


def check_no_orphans(folder):
    for file in folder.iterdir():
        if text := file.read_text():
            state = Path(f"/proc/{int(text)}/stat")
            assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_killed_rank_has_the_status_that_a_shell_gives_it():
    ended = run("-np", "2", "sh", "-c", "if [ $RANK = 0 ]; then kill -9 $$; fi; exec sleep 500")
    assert ended.returncode == 137
    assert "rank 0 on localhost ended with SIGKILL" in ended.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_ctrl_c_ends_all(tmp_path, number, status):
    with subprocess.Popen([*HARP, "-np", "2", "sh", "-c",
                           f"sleep 500 & echo $! > {tmp_path}/$RANK; echo up; wait"],
                          text=True, stdout=subprocess.PIPE) as started:
        for _ in range(2):
            assert started.stdout.readline().endswith("up\n")
        started.send_signal(number)
        assert started.wait(PATIENCE_S) == status
    check_no_orphans(tmp_path)


def test_a_killed_launcher_leaves_no_rank():
    with subprocess.Popen([*HARP, "-np", "1", "sh", "-c", "echo $$; exec sleep 500"], text=True,
                          stdout=subprocess.PIPE) as started:
        rank = int(started.stdout.readline().split()[1])
        seen = os.pidfd_open(rank)
        started.kill()
        started.wait()
        import select
        assert select.select([seen], [], [], PATIENCE_S)[0]
        os.close(seen)


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


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"LIGHT_TOPK_RATIO": "5"}, "LIGHT_TOPK_RATIO is '5'; allowed is a share above 0 and up to 1"),
    ({"HARP_PORT": "bogus"}, 'HARP_PORT is "bogus": possible is auto, xdp, udp, tcp, mem, or '),
    ({"HARP_TUNER": "/nope"}, "HARP_TUNER /nope: No such file or directory"),
    ({"HARP_PLAN": "/nope"}, "HARP_PLAN /nope cannot be read: no such file or directory"),
    ({"HOROVOD_CYCLE_TIME": "abc"}, "HOROVOD_CYCLE_TIME is 'abc'; allowed is a number, 0 or more"),
    ({"HOROVOD_TIMELINE": "/nope/x.json"}, "HOROVOD_TIMELINE: cannot write '/nope/x.json': there")])
def test_an_impossible_setting_is_refused_before_a_rank_starts(settings, sentence):
    ended = run("-np", "2", "echo", "began", **settings)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {sentence}")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1"])
def test_an_address_of_this_host_is_taken(address):
    ended = run("--address", address, "true")
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["-np", "3", "-H", "a:1"], "-np is 3, but the hosts have 1 slots"),
    (["-H", ""], "'' names no host; write HOST:SLOTS"),
    (["-np", "2", "--min-np", "3"], "--min-np is 3, more than the 2 ranks"),
    (["-H", "a:b"], "'a:b' is not a host"),
    (["-H", "a", "--host-discovery-script", __file__], "give only one of -H, --hostfile"),
    (["--host-discovery-script", __file__], "is not executable"),
    (["--address", "banana.invalid"], "unknown host 'banana.invalid'"),
    (["--address", "a" * 70], f"unknown host '{'a' * 70}'"),
    (["--address", "192.0.2.7"], "192.0.2.7 is not an address of this host, where rank 0 runs"),
    (["--max-np", "2"], "--max-np needs --host-discovery-script")])
def test_a_mistake_is_one_sentence(harp_here, arguments, sentence):
    done = harp_here("run", *arguments, "true")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
