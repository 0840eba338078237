"""HARP: plans, routes and the user-space stack.

``harp.Engine`` and the rest of ``harp.net`` are here by name, and loaded when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harp.lazy_names import lazy_names

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

__getattr__ = lazy_names(__name__, {name: f"harp.net:{name}" for name in __all__})
