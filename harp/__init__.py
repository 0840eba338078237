"""HARP: plans, routes and the user-space stack.

``harp.Engine`` and the rest of ``harp.net`` are here by name, and loaded when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harp.net import (
        Broken,
        Buffer,
        Closed,
        Completion,
        Connection,
        ConnectionInfo,
        ConnectionOptions,
        Draft,
        EndedError,
        Engine,
        Forked,
        Handle,
        HarpError,
        Listener,
        OpenError,
        PathInfo,
        PeerGone,
        Port,
        Reason,
        Stream,
        Timeout,
    )

__all__ = ["Broken", "Buffer", "Closed", "Completion", "Connection", "ConnectionInfo",
           "ConnectionOptions", "Draft", "EndedError", "Engine", "Forked", "Handle", "HarpError",
           "Listener", "OpenError", "PathInfo", "PeerGone", "Port", "Reason", "Stream", "Timeout"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'harp' has no attribute {name!r}")
    import harp.net

    return getattr(harp.net, name)
