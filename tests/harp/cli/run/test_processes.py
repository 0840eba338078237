"""Processes of a job: their places and output, and their common end."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from harp.cli.run.processes import place_ranks, variables
from tests.harp.cli.run.launched import HARP, PATIENCE_S, check_no_orphans, run


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
