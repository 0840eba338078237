"""Statistics of this host's engines, read from shared memory without stopping them.

`cnet/engine/stats.h` and `cnet/base/recorder.h` document the fields. Processes of the same user and
root can read them. The statistics and last events of an engine stay after its process has died,
until they are forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harp._cnet import ffi, lib
from harp.net.handle import address_text

if TYPE_CHECKING:
    from collections.abc import Collection

ENTRIES = 1024
STATES = ("unused", "connecting", "accepting", "open", "closing", "closed")


@dataclass(frozen=True)
class Snapshot:
    """The statistics of one engine at one moment."""

    file: str
    alive: bool
    """Whether the engine's process is running."""
    name: str
    pid: int
    started_ns: int
    """CLOCK_MONOTONIC, unless the engine uses another clock."""
    started_unix_ns: int
    engine: dict[str, int]
    """Counters of `struct harp_engine_counters`."""
    ports: list[dict[str, Any]]
    """A line that describes the port, and its `struct harp_port_counters`."""
    connections: list[dict[str, Any]]
    """`struct harp_stats_connection` of each, the state as a word."""
    paths: list[dict[str, Any]]
    """`struct harp_stats_path` of each: connection, addresses, `struct harp_path_info`."""
    events: list[tuple[int, int, str]]
    """The flight recorder, oldest first: time, connection, text."""


def snapshots(pids: Collection[int] = (), events: int | None = None) -> list[Snapshot]:
    """Read the engines of some processes, or all, the oldest first; the last ``events`` or all."""
    entries = ffi.new("struct harp_stats_entry[]", ENTRIES)
    read = [_read(entry, events) for entry in entries[0:lib.harp_stats_list(entries, ENTRIES)]]
    seen = [engine for engine in read if engine and (not pids or engine.pid in pids)]
    return sorted(seen, key=lambda engine: (engine.started_unix_ns, engine.file))


def forget(engine: Snapshot) -> bool:
    """Remove the statistics of an engine with a dead process; False if it is alive."""
    return bool(lib.harp_stats_forget(engine.file.encode()))


def _read(entry: Any, events: int | None) -> Snapshot | None:
    """Read one engine; None if it has gone or has another version."""
    why = ffi.new("char[]", lib.HARP_WHY_BYTES)
    reader = lib.harp_stats_open(entry.file, why)
    if reader == ffi.NULL:
        return None
    stats = ffi.new("struct harp_stats *")
    lib.harp_stats_read(reader, stats)
    lib.harp_stats_close(reader)
    first = 0 if events is None else max(0, stats.recorder.count - events)
    return Snapshot(
        file=_text(entry.file), alive=bool(entry.alive), name=_text(stats.name), pid=stats.pid,
        started_ns=stats.started_ns, started_unix_ns=stats.started_unix_ns,
        engine=_fields(stats.engine),
        ports=[_fields(port) for port in stats.ports if port.changes],
        connections=[_connection(row) for row in stats.connections if row.state],
        paths=[_path(row) for row in stats.paths if row.connection],
        events=[_event(stats.recorder.events[i]) for i in range(first, stats.recorder.count)])


def _text(value: Any) -> str:
    return str(ffi.string(value).decode(errors="replace"))


def _fields(struct: Any) -> dict[str, Any]:
    """A C struct as a dictionary, what is nested in it spread out; `changes` is the lock's."""
    values: dict[str, Any] = {}
    for name, field in ffi.typeof(struct).fields:
        value = getattr(struct, name)
        if field.type.kind == "struct":
            values |= _fields(value)
        elif field.type.kind == "array":
            values[name] = _text(value)
        elif name != "changes":
            values[name] = int(value)
    return values


def _connection(row: Any) -> dict[str, Any]:
    values = _fields(row)
    state = values["state"]
    values["state"] = STATES[state] if state < len(STATES) else str(state)
    return values


def _path(row: Any) -> dict[str, Any]:
    return {"connection": row.connection, "number": row.number, "port": row.port,
            "local": address_text(row.local), "remote": address_text(row.remote),
            **_fields(row.info)}


def _event(event: Any) -> tuple[int, int, str]:
    text = ffi.new("char[]", lib.HARP_RECORDER_LINE_BYTES)
    lib.harp_recorder_text(ffi.addressof(event), text, len(text))
    return event.time_ns, event.connection, _text(text)
