"""``harp diagnose``: files, hosts over a port with a token, what people and programs read."""

import json
import os
import re
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import pytest
from click.testing import CliRunner

from harp.cli import stats_files
from harp.cli.diagnose import diagnose, snapshot_exchange
from harp.cli.diagnose.snapshot import engines, from_json, to_json
from harp.cli.diagnose.snapshot_exchange import SnapshotServer, ask_host
from harp.net import Engine, Port
from lab.namespace import why_unusable
from lab.veth import veth_pair
from tests.support import PATIENCE_S
from tests.support.diagnosis_cluster import all_to_all
from tests.support.html_pages import Page, check_chart, needs_chromium
from tests.support.levels import long

TOKEN = b"0123456789abcdef0123456789abcdef"


def invoke(*words):
    return CliRunner().invoke(diagnose, [str(word) for word in words])


def faulty():
    cluster = all_to_all(4)
    for way in cluster.touching(1, 0):
        way.open = False
    return cluster.reports()


@pytest.fixture
def files(tmp_path):
    names = []
    for report in faulty():
        names.append(tmp_path / f"{report.host}.json")
        names[-1].write_text(to_json(report))
    return names


@pytest.fixture
def token_file(tmp_path):
    file = tmp_path / "token"
    file.write_bytes(TOKEN + b"\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def quick(monkeypatch):
    """Hosts that report a made-up job, at once."""
    reports = {report.host: report for report in faulty()}
    monkeypatch.setattr(snapshot_exchange, "take_report",
                        lambda host, seconds, moments: reports[host])


@contextmanager
def serving(host, token=TOKEN):
    with SnapshotServer("127.0.0.1", 0, token, host) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def refusing():
    """A port that is taken, so that nobody else gets it, and that refuses connections."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        yield deaf.getsockname()[1]


def test_people_read_who_it_is_and_why(files):
    done = invoke(*files)
    assert done.exit_code == 3
    lines = done.output.splitlines()
    assert lines[0] == "4 hosts, 48 directions of paths"
    assert lines[1] == "port eth0 (10.0.0.2) of h1: carries nothing (100% sure)"
    assert "of the last" in lines[2]


def test_programs_read_json(files):
    said = json.loads(invoke("--json", *files).output)
    assert (said["hosts"], said["missing"]) == (["h0", "h1", "h2", "h3"], [])
    [suspect] = said["suspects"]
    assert suspect["kind"] == "port"
    assert (suspect["host"], suspect["way"]) == ("h1", "both")
    assert 0.9 < suspect["confidence"] <= 1


def test_a_page_has_the_suspects_and_the_hosts(files, tmp_path):
    done = invoke("--html", tmp_path / "d.html", *files)
    assert done.exit_code == 3
    text = (tmp_path / "d.html").read_text()
    cells = Page(text).cells
    assert cells[1][0] == "port eth0 (10.0.0.2) of h1: carries nothing (100% sure)"
    assert [row[0] for row in cells[-4:]] == ["h0", "h1", "h2", "h3"]
    option = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])["chart-0"]
    assert option["series"][0]["data"] == [pytest.approx(100, abs=0.5)]


@long
@needs_chromium
def test_a_browser_draws_the_suspects(files, tmp_path, chrome):
    invoke("--html", tmp_path / "d.html", *files)
    check_chart(chrome, tmp_path / "d.html")


def test_a_page_of_a_snapshot_or_of_another_ending_is_refused(files, tmp_path):
    for words in (["--snapshot", tmp_path / "s.json", "--html", tmp_path / "d.html"],
                  ["--html", tmp_path / "d.txt", *files]):
        done = invoke(*words)
        assert done.exit_code in (1, 2)
        assert "--html needs files" in done.output or "must end in" in done.output
        assert not list(tmp_path.glob("[sd].*"))


def test_a_healthy_job_ends_with_0(tmp_path):
    file = tmp_path / "h.json"
    file.write_text(to_json(all_to_all(3).reports()[0]))
    done = invoke(file)
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "nothing is suspect")


def test_a_host_without_a_running_job_is_no_healthy_one(tmp_path):
    file = tmp_path / "h.json"
    report = all_to_all(3).reports()[0]
    for moment in report.moments:
        moment.engines.clear()
    file.write_text(to_json(report))
    done = invoke(file)
    assert (done.exit_code, "no path of a running job was found" in done.output) == (1, True)


def test_a_file_that_is_no_snapshot_is_named_and_the_rest_is_used(files, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text('{"format": "harp-snapshot-0"}')
    done = invoke(*files, bad)
    assert done.exit_code == 3
    assert f"no report: {bad}: it is no snapshot of format harp-snapshot-1" in done.output
    assert "port eth0" in done.output


@pytest.mark.parametrize(("words", "said"), [
    ((), "give one of these"),
    (("x.json",), "'x.json' is neither a file nor HOST:PORT"),
    (("a:70000",), "'a:70000' is neither a file nor HOST:PORT"),
    (("a:1",), "the network needs a token"),
    (("--serve", "9407"), "the network needs a token"),
    (("--serve", "9407", "--snapshot", "x"), "give one of these")])
def test_wrong_use_is_one_sentence(words, said):
    done = invoke(*words)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize(("content", "mode", "said"), [
    (TOKEN, 0o644, "can be read by others"), (b"short", 0o600, "5 bytes; at least 16"),
    (None, 0, "cannot be read")])
def test_a_token_must_be_secret_and_long(tmp_path, content, mode, said):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
        file.chmod(mode)
    done = invoke("--token-file", file, "node:1")
    assert done.exit_code == 2
    assert said in done.output


def test_two_reports_of_one_host_are_refused(files):
    done = invoke(files[0], files[0])
    assert done.exit_code == 2
    assert "two reports are of host h0" in done.output


def test_hosts_are_asked_over_a_port(quick, token_file):
    with serving("h0") as a, serving("h1") as b, serving("h2") as c, refusing() as gone:
        done = invoke("--token-file", token_file,
                      *(f"127.0.0.1:{port}" for port in (a, b, c, gone)))
    assert f"no report: 127.0.0.1:{gone} cannot be reached: Connection refused" in done.output
    assert "port eth0 (10.0.0.2) of h1: carries nothing" in done.output


def test_another_token_learns_nothing(quick):
    with serving("h0") as port, pytest.raises(snapshot_exchange.ExchangeError, match="wrong token"):
        ask_host("127.0.0.1", port, b"x" * 32, 1, 2)


def test_an_answer_is_good_once(quick):
    """An eavesdropper on one exchange cannot use it for the next."""
    with serving("h0") as port:
        challenges = set()
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port), 20) as made:
                challenges.add(json.loads(made.makefile("rb").readline())["challenge"])
    assert len(challenges) == 3


@pytest.mark.parametrize("request_", [
    b"", b"\n", b"[]\n", b"{}\n", b'{"answer": 3}\n', b"\xff" * 10_000, b"x" * 511 + b"\n",
    b'{"answer": "\xc3\xa9", "seconds": 1, "moments": 2}\n'])
def test_bytes_that_are_no_request_get_no_report(quick, request_):
    with serving("h0") as port, socket.create_connection(("127.0.0.1", port), 20) as made:
        file = made.makefile("rb")
        file.readline()
        said = b""
        with suppress(OSError):  # it may hang up before it has read all
            made.sendall(request_)
            made.shutdown(socket.SHUT_WR)
            said = file.read(1000)
        assert b"moments" not in said
        assert ask_host("127.0.0.1", port, TOKEN, 1, 2).host == "h0"


def test_a_client_without_the_token_holds_nobody_up(quick):
    """As many strangers as the server hears at once, and more, each amid a request."""
    with serving("h0") as port, ExitStack() as stack:
        for _ in range(snapshot_exchange.STRANGERS + 6):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            with suppress(OSError):  # the oldest are hung up on
                stranger.makefile("rb").readline()
                stranger.sendall(b" ")
        assert ask_host("127.0.0.1", port, TOKEN, 1, 2).host == "h0"


def test_a_request_that_trickles_in_has_an_end(quick, monkeypatch):
    monkeypatch.setattr(snapshot_exchange, "REQUEST_S", 0.5)
    with serving("h0") as port, socket.create_connection(("127.0.0.1", port), 20) as made:
        made.makefile("rb").readline()
        for _ in range(snapshot_exchange.REQUEST_BYTES // 2):
            with suppress(OSError):
                made.sendall(b" ")
            if select.select([made], [], [], 0.05)[0]:
                break  # it has hung up
        else:
            pytest.fail("each byte gave the request more time")


@pytest.mark.parametrize(("seconds", "moments"), [(-1, 2), (1e9, 2), (1, 1), (1, 10**6)])
def test_only_so_much_can_be_asked_for(quick, seconds, moments):
    with serving("h0") as port, pytest.raises(snapshot_exchange.ExchangeError, match="hung up"):
        ask_host("127.0.0.1", port, TOKEN, seconds, moments)


def test_a_snapshot_is_of_this_host(tmp_path):
    """A real job of this host: what one command writes, the other one reads."""
    place = Port("udp", address="127.0.0.1")
    with Engine(place) as near, Engine(place) as far:
        listener = far.listen()
        connection = near.connect(listener.handle, timeout=PATIENCE_S)
        peer = listener.accept(timeout=PATIENCE_S)
        file = tmp_path / "here.json"
        assert invoke("--snapshot", file, "--seconds", 0.5, "--name", "here").exit_code == 0
        assert (connection.closed, peer.closed) == (False, False)
    report = from_json(file.read_bytes())
    assert report.host == "here"
    assert file.stat().st_mode & 0o777 == 0o600
    rows = {row.connection: row for engine in report.moments[-1].engines for row in engine.paths}
    ends = {(row.local, row.remote) for row in rows.values() if "127.0.0.1" in row.local}
    assert any(pair[::-1] in ends for pair in ends)


def test_a_path_that_has_yet_to_find_its_way_says_nothing_of_namespaces(monkeypatch):
    place = Port("udp", address="127.0.0.1")
    with Engine(place) as near, Engine(place) as far:
        listener = far.listen()
        connection = near.connect(listener.handle, timeout=PATIENCE_S)
        found = [row for row in stats_files.snapshots([os.getpid()], 8) if row.paths]
        assert not connection.closed
    cut = [replace(row, paths=[path | {"local": ""} for path in row.paths]) for row in found]
    monkeypatch.setattr(stats_files, "snapshots", lambda *_: cut)
    assert {row.file for row in engines()} == {row.file for row in found}


def engines_seen_at(end):
    with end.space.entered():
        return {engine.file for engine in engines()}


def wait_for_paths(*engines):
    """Wait until the engines' statistics, which are written at times, have their paths."""
    files = {engine.stats_path.rpartition("/")[2] for engine in engines}
    end_s = time.monotonic() + PATIENCE_S
    while not files <= {each.file for each in stats_files.snapshots((os.getpid(),))
                        if any(path["local"] for path in each.paths)}:
        assert time.monotonic() < end_s


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_hosts_that_share_memory_report_their_own_engines():
    """As containers do that are given their host's /dev/shm, and networks of their own."""
    with veth_pair() as (near, far):
        with near.space.entered():
            place = Engine(Port("udp", address=near.ipv4))
        with far.space.entered():
            other = Engine(Port("udp", address=far.ipv4))
        with place, other:
            listener = other.listen()
            with near.space.entered():
                connection = place.connect(listener.handle, timeout=PATIENCE_S)
            peer = listener.accept(timeout=PATIENCE_S)
            wait_for_paths(place, other)
            with ThreadPoolExecutor() as pool:  # a process is where its first thread is
                seen = list(pool.map(engines_seen_at, (near, far)))
            assert (connection.closed, peer.closed) == (False, False)
            own = [engine.stats_path.rpartition("/")[2] for engine in (place, other)]
    assert [set(own) & each for each in seen] == [{own[0]}, {own[1]}]
