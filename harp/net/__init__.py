"""The network stack for Python: engines, listeners and connections (docs/use/python.md)."""

from harp.net.completion import Completion
from harp.net.connection import Connection
from harp.net.engine import ConnectionOptions, Engine, Listener, Port
from harp.net.errors import (
    Broken,
    Closed,
    EndedError,
    Forked,
    HarpError,
    OpenError,
    PeerGone,
    Reason,
    Timeout,
)
from harp.net.frames import Draft, Stream
from harp.net.handle import Handle
from harp.net.info import ConnectionInfo, PathInfo
from harp.net.memory import Buffer

__all__ = ["Broken", "Buffer", "Closed", "Completion", "Connection", "ConnectionInfo",
           "ConnectionOptions", "Draft", "EndedError", "Engine", "Forked", "Handle", "HarpError",
           "Listener", "OpenError", "PathInfo", "PeerGone", "Port", "Reason", "Stream", "Timeout"]
