"""Information about a connection and its paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harp._cnet import ffi


@dataclass(frozen=True)
class ConnectionInfo:
    """The current state of a connection."""

    id: int
    peer: str
    segment: int
    """Bytes of payload of a full frame."""
    paths: int
    counters: dict[str, int]
    """Named like the fields of ``struct harp_session_counters`` of cnet/session/session.h."""


@dataclass(frozen=True)
class PathInfo:
    """The current state of a path; ``state`` has the fields of ``struct harp_path_info``."""

    local: str
    remote: str
    state: dict[str, int]


def fields(struct: Any) -> dict[str, int]:
    """The numbers of a C struct, by name."""
    return {name: int(getattr(struct, name)) for name, _ in ffi.typeof(struct).fields}
