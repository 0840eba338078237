"""Advice on the fastest port between two hosts."""

import re
import subprocess
from contextlib import contextmanager

import pytest

from lab.namespace import why_unusable
from lab.veth import veth_pair
from tests.harp.cli.perf.measured import PERF, run
from tests.support.levels import long


@contextmanager
def serving_until_the_end(before=()):
    """A server for any number of clients; gives its control port."""
    server = subprocess.Popen([*before, *PERF, "--serve", "--control", "0"],
                              stdout=subprocess.PIPE, text=True)
    try:
        yield re.search(r"TCP port (\d+)", server.stdout.readline())[1]
    finally:
        server.kill()
        server.communicate()


@long
@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_advice_measures_each_port_and_writes_the_fastest(tmp_path):
    file = tmp_path / "harp.conf"
    file.write_text("# by hand\nHARP_PATHS=2\n HARP_PORT = udp\n")
    with veth_pair() as (a, b), serving_until_the_end(b.space.command()) as control:
        for _ in range(2):  # the second time its own line is replaced
            said = a.space.run(*PERF, b.ipv4, "--control", control, "--advise", "--seconds",
                               "0.01", "--output", str(file), timeout_s=120)
    rates = {kind: float(rate) for kind, rate in
             re.findall(r"^(tcp|udp|xdp) +([\d.]+) +[\d.]+ +[\d.]+$", said, re.MULTILINE)}
    assert set(rates) == {"tcp", "udp", "xdp"}, said
    best = max(rates, key=rates.get)
    written = file.read_text().splitlines()
    assert written[:2] == ["# by hand", "HARP_PATHS=2"]
    assert re.fullmatch(rf"# harp perf --advise: {best} has (\d+\.\d\d times \w+(, )?)+",
                        written[2])
    assert written[3:] == [f"HARP_PORT={best}"]
    assert f"HARP_PORT={best} written to {file}" in said


def test_advice_says_of_each_port_why_it_is_not_possible():
    with serving_until_the_end() as control:
        done = run("127.0.0.1", "--control", control, "--advise", "--seconds", "0.01",
                   "--output", "-")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^xdp +not possible: ", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^HARP_PORT=(tcp|udp)$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("options", [["--advise"], ["--local", "--advise"],
                                     ["127.0.0.1", "--output", "-"]])
def test_advice_needs_a_host(options):
    done = run(*options)
    assert done.returncode == 2
    assert "--advise" in done.stderr or "name a HOST" in done.stderr
    assert "Traceback" not in done.stderr


def test_advice_for_a_file_that_cannot_be_written_measures_nothing():
    done = run("127.0.0.1", "--advise", "--output", "/nosuch/harp.conf")
    assert done.returncode != 0
    assert "/nosuch" in done.stderr
