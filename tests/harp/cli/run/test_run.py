"""``harp run``: what it refuses before a rank starts, and what it takes."""

from __future__ import annotations

import pytest

from tests.harp.cli.run.launched import run


def test_a_file_that_is_not_executable_is_no_program(tmp_path, harp_here):
    path = tmp_path / "train.py"
    path.write_text("")
    done = harp_here("run", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"'{path}' is not executable; use chmod +x" in done.stderr


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
