"""Snapshots over a port: what a client without the token cannot do."""

import json
import select
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress

import pytest

from harp.cli.diagnose import snapshot_exchange
from harp.cli.diagnose.snapshot_exchange import SnapshotServer, ask_host
from tests.harp.cli.diagnose.faulty_job import TOKEN, faulty, invoke


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
