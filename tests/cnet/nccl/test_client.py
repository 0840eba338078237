"""The client of NCCL plugins: a sound plugin passes, a broken one does not."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from lab.c_programs import PLAIN
from lab.namespace import why_unusable
from lab.nccl_pair import SOURCES, client, run_pair, tcp_ref
from lab.veth import veth_pair
from tests.support import PATIENCE_S
from tests.support.levels import long, long_except

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


# Each deliberately broken kind of the reference (tcp_ref.h), the scenario that must notice it, and
# what it must say.
BROKEN = {
    "SWAPPED_BLOCKS": ("fifo", r"byte \d+ of \d+ is .. and not .."),
    "POSTED_SIZE": ("smaller", r"test says that buffer 0 got \d+ bytes; \d+ were sent"),
    "EARLY_DONE": ("fifo", r"byte \d+ of \d+ is .. and not|the other end closed|not done after"),
    "STALE_REQUEST": ("stale", r"irecv left \*request as it was"),
    "FIFO_ONLY": ("lifo", r"not done after .* isend, \d+ posted"),
    "BLOCKING_ACCEPT": ("listeners", r"not done after"),  # the rank whose limit comes first says so
    "BLOCKING_CONNECT": ("fifo", r"not done after .* at: connect"),
    "TOUCHED_LATE": ("in-flight", r"touched a buffer after its deregMr"),
    "READ_LATE": ("in-flight", r"touched a buffer after its deregMr"),
    "LISTENER_OWNS": ("fifo", r"gave ncclRemoteError"),
    "IGNORED_TAGS": ("tags", r"byte \d+|longer than its buffer|test says"),
    # The thread's next instruction is gone with the plugin: whichever is seen first.
    "LEFT_THREAD": ("reload", r"1 threads of the plugin are left after dlclose|died of signal 11"),
    "LEFT_DESCRIPTOR": ("reload", r"descriptor \d+ \(.*\) is left open after dlclose"),
    "UNSET_PROPERTY": ("properties", r"getProperties does not set railId"),
    "SILENT_DEATH": ("killed", r"was killed, and .* later \d of \d comms have given no error"),
    "ONE_FOR_ALL": ("communicators", r"gave ncclRemoteError"),
    "OVERRUN": ("smaller", r"byte \d+ was written, the message has"),
    "BACKWARDS": ("flags", r"there before its (others|data) \(LL"),
    "NO_EMPTY": ("sizes", r"not done after .* irecv, \d+ posted"),
    "CUT_LARGE": ("sizes", r"test says that buffer 0 got 33554432 bytes"),
}


def run(plugin: Path, scenarios: list[str], *options: str,
        settings: dict[str, str] | None = None, flags: tuple[str, ...] | None = None):
    with veth_pair() as (a, b):
        return run_pair(client(flags) if flags else client(), plugin, scenarios,
                        spaces=(a.space, b.space), settings=settings, options=options)


@pytest.mark.parametrize(("sockets", "version"), long_except(
    [(1, 12), (2, 12), (4, 12), (2, 10)], (2, 12)))
def test_the_reference_passes(sockets, version):
    ended = run(tcp_ref(), [], "--version", str(version), "--without", "flags",
                settings={"TCP_REF_SOCKETS": str(sockets)})
    assert ended.good, str(ended)


def test_the_reference_reports_a_killed_peer():
    ended = run(tcp_ref(), ["killed"])
    assert ended.good, str(ended)
    assert "it said: TCP reference: " in ended.said[0]


@long
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_caught(kind):
    scenario, sentence = BROKEN[kind]
    limit = "5" if "not done" in sentence else "30"
    # Who looks at a flag while it is written sees the wrong order only if he looks just then; and
    # a receive that is done too early is seen only if its bytes have not come by then.
    for _ in range(20 if scenario == "flags" or kind == "EARLY_DONE" else 1):
        ended = run(tcp_ref(PLAIN, kind), [scenario], "--limit", limit, "--bound", "2", flags=PLAIN)
        if ended.codes != (0, 0):
            break
    assert ended.codes == (1, 1), str(ended)
    said = "".join(ended.said)
    assert re.search(sentence, said), str(ended)
    assert said.count(f"FAIL {scenario} ") == 2


def test_every_broken_kind_is_tried():
    header = (SOURCES / "tcp_ref.h").read_text()
    kinds = re.search(r"enum broken \{(.*?)\};", header, re.DOTALL)[1]
    names = re.findall(r"^ *([A-Z_]+),", kinds, re.MULTILINE)
    assert names[0] == "SOUND"
    assert names[1:] == list(BROKEN)


@long
def test_a_failure_leaves_the_next_scenario_alone():
    ended = run(tcp_ref(PLAIN, "POSTED_SIZE"), ["fifo", "smaller", "lifo"], flags=PLAIN)
    for rank in (0, 1):
        assert [line.split()[:2] for line in ended.said[rank].splitlines()] == [
            ["ok", "fifo"], ["FAIL", "smaller"], ["ok", "lifo"]], str(ended)


@long
def test_the_table_and_the_figures():
    ended = run(tcp_ref(PLAIN), ["table"], "--largest", "65536", "--seconds", "0.1", flags=PLAIN)
    assert ended.good, str(ended)
    assert re.search(r"^ +32768 +\d+ +[\d.]+ +[\d.]+$", ended.said[0], re.MULTILINE)
    assert "8 B there and back: median" in ended.said[0]


@pytest.mark.parametrize("size", [8, 64 << 10, 4 << 20])
def test_allreduces_of_a_ring_are_counted(size):
    ended = run(tcp_ref(), ["ring"], "--size", str(size), "--seconds", "0.1", "--limit", "60")
    assert ended.good, str(ended)
    got = json.loads(ended.said[0].splitlines()[-1])
    assert got["bytes"] >= size / 2
    assert got["bytes"] % (size / 2) == 0


def test_both_directions_are_counted():
    ended = run(tcp_ref(), ["both"], "--size", "65536", "--seconds", "0.1")
    assert ended.good, str(ended)
    got = json.loads(ended.said[0].splitlines()[-1])
    assert got["bytes"] == got["packets"] * 65536 > 0


def test_wrong_options_and_plugins_are_one_sentence(tmp_path):
    program = client()
    asked = subprocess.run([program, tmp_path / "no.so", "nosuch"], capture_output=True, text=True,
                           check=False, timeout=PATIENCE_S)
    assert asked.returncode == 1
    assert asked.stderr == "there is no scenario nosuch; --list shows them\n"
    assert subprocess.run([program], check=False, timeout=PATIENCE_S,
                          capture_output=True).returncode == 2
    ended = run(tmp_path / "no.so", ["fifo"])
    assert "the plugin cannot be loaded: " in ended.said[0]
    older = run(tcp_ref(), ["fifo"], "--version", "6")
    assert "has no ncclNetPlugin_v6" in older.said[0]
