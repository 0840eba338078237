"""``harp top --export``: the counters of this host's engines in Prometheus' format.

Text format 0.0.4. Names follow Prometheus' conventions: base units, which end a name, and `_total`
for what only grows; all begin with `harp_`. METRICS is the whole list. Labels: `engine` is the
engine's name, `pid` its process and `file` where its statistics lie; a connection's are also
`connection`, its id, and `peer`; a path's also `path`, `local` and `remote`.

To a port of this host (`server`), or into a file that node_exporter's textfile collector reads.
"""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harp.cli.stats_files import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_S = 5.0
"""Time limit for a request to arrive."""
NS = 1e-9

Scope = Literal["engine", "port", "connection", "path"]


class Metric(NamedTuple):
    """A family of samples, one for each thing of its scope."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    scope: Scope
    key: str
    """In the dictionary that statistics.py gives of such a thing."""
    factor: float = 1
    """To a base unit."""


def _counter(name: str, text: str, scope: Scope, key: str, factor: float = 1) -> Metric:
    return Metric(f"harp_{name}_total", "counter", text, scope, key, factor)


def _gauge(name: str, text: str, scope: Scope, key: str, factor: float = 1) -> Metric:
    return Metric(f"harp_{name}", "gauge", text, scope, key, factor)


METRICS = (
    _gauge("engine_up", "Whether the engine's process lives.", "engine", "alive"),
    _gauge("engine_connections", "Connections that are open now.", "engine", "connections"),
    _counter("engine_turns", "Rounds of the engine's loop.", "engine", "turns"),
    _counter("engine_busy_turns", "Rounds in which something came or went.", "engine",
             "busy_turns"),
    _counter("engine_room_waits", "Times that a connection waited for room in a port.", "engine",
             "no_room"),
    _counter("engine_connections_opened", "Connections since the beginning.", "engine",
             "connections_opened"),
    _counter("engine_messages_sent", "Messages that the peer has received.", "engine",
             "messages_sent"),
    _counter("engine_message_sent_bytes", "Their bytes.", "engine", "message_bytes_sent"),
    _counter("engine_messages_received", "Messages received completely.", "engine",
             "messages_received"),
    _counter("engine_message_received_bytes", "Their bytes.", "engine",
             "message_bytes_received"),
    _counter("engine_bad_tag_frames", "Frames refused for a wrong tag.", "engine", "bad_tag"),
    _counter("engine_stranger_frames", "Frames of no connection.", "engine", "strangers"),
    _counter("port_sent_packets", "Datagrams sent.", "port", "sent"),
    _counter("port_sent_bytes", "Their UDP payload.", "port", "sent_bytes"),
    _counter("port_received_packets", "Datagrams received.", "port", "received"),
    _counter("port_received_bytes", "Their UDP payload.", "port", "received_bytes"),
    _counter("port_dropped_packets", "Datagrams dropped before they left.", "port", "dropped"),
    _counter("connection_sent_bytes", "Bytes of messages that the peer has received.", "connection",
             "message_bytes_sent"),
    _counter("connection_received_bytes", "Bytes of messages received completely.", "connection",
             "message_bytes_received"),
    _counter("connection_starved_seconds", "Time in which messages waited for the peer's credit.",
             "connection", "starved_ns", NS),
    _counter("connection_bad_payload_frames", "Frames with a wrong CRC.", "connection",
             "bad_payloads"),
    _counter("connection_resent_packets", "Packets that carry a chunk again.",
             "connection", "data_again"),
    _gauge("connection_paths", "Paths.", "connection", "paths"),
    _gauge("connection_paths_alive", "Paths that are alive.", "connection", "paths_alive"),
    _gauge("path_up", "Whether the path is alive.", "path", "alive"),
    _gauge("path_round_trip_seconds", "Smoothed, without the far host's part.", "path",
           "smoothed_ns", NS),
    _gauge("path_least_round_trip_seconds", "The least of late.", "path", "least_ns", NS),
    _gauge("path_far_host_seconds", "Time that the far host takes to answer, smoothed.", "path",
           "host_ns", NS),
    _gauge("path_window_bytes", "Congestion window.", "path", "window_bytes"),
    _gauge("path_in_flight_bytes", "Sent and not acknowledged.", "path", "bytes_in_flight"),
    _gauge("path_frame_bytes", "UDP payload of a frame at most.", "path", "frame_bytes"),
    _counter("path_sent_packets", "Packets sent.", "path", "sent"),
    _counter("path_found_packets", "Packets given up that came all the same.", "path",
             "spurious"),
    _counter("path_deaths", "Times that the path died.", "path", "died"),
    _counter("path_due_packets", "Packets that the peer sent, up to the last that came.", "path",
             "due"),
    _counter("path_arrived_packets", "Packets of these that came.", "path", "arrived"),
    _gauge("path_lost_packets", "Packets given up and not found since.", "path", "lost"),
)


def exposition(engines: Sequence[Snapshot]) -> str:
    """Format all metrics as text."""
    lines: list[str] = []
    for metric in METRICS:
        things = list(_things(engines, metric.scope))
        if things:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        for labels, values in things:
            text = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
            lines.append(f"{metric.name}{{{text}}} {values[metric.key] * metric.factor:.15g}")
    return "\n".join(lines) + "\n" if lines else ""


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _things(engines: Sequence[Snapshot],
            scope: Scope) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Labels and values of each thing of a scope."""
    for engine in engines:
        labels = {"engine": engine.name, "pid": str(engine.pid), "file": engine.file}
        if scope == "engine":
            yield labels, {"alive": engine.alive, **engine.engine}
        elif scope == "port":
            for number, port in enumerate(engine.ports):
                yield {**labels, "port": str(number)}, port
        else:
            yield from _connection_things(engine, labels, scope)


def _connection_things(engine: Snapshot, labels: dict[str, str],
                       scope: Scope) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    peers = {}
    for row in engine.connections:
        peers[row["id"]] = {**labels, "connection": f"{row['id']:016x}", "peer": row["peer"]}
        if scope == "connection":
            yield peers[row["id"]], row
    for row in engine.paths if scope == "path" else ():
        if row["connection"] in peers:
            yield {**peers[row["connection"]], "path": str(row["number"]),
                   "local": row["local"], "remote": row["remote"]}, row


class _Server(ThreadingHTTPServer):
    """A request a thread; a slow one ends after a while."""

    daemon_threads = True


def server(address: str, port: int, look: Callable[[], Sequence[Snapshot]]) -> ThreadingHTTPServer:
    """Answer GET /metrics by what ``look`` sees; ``serve_forever`` is the caller's."""
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_S
        server_version = "harp"

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == "/metrics"
            body = exposition(look()).encode() if found else b"there is /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: Prometheus asks every few seconds."""

    class Server(_Server):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    return Server((address, port), Handler)
