"""The network stack for Python: engines, listeners, sessions. docs/python.md shows its use."""

from harp.net.completion import Completion
from harp.net.engine import Engine, Listener, Port, SessionOptions
from harp.net.errors import (
    Broken,
    Closed,
    Forked,
    HarpError,
    OpenError,
    PeerGone,
    Reason,
    SessionError,
    Timeout,
)
from harp.net.frames import Draft, Stream
from harp.net.handle import Handle
from harp.net.info import PathInfo, SessionInfo
from harp.net.memory import Buffer
from harp.net.session import Session

__all__ = ["Broken", "Buffer", "Closed", "Completion", "Draft", "Engine", "Forked", "Handle",
           "HarpError", "Listener", "OpenError", "PathInfo", "PeerGone", "Port", "Reason",
           "Session", "SessionError", "SessionInfo", "SessionOptions", "Stream", "Timeout"]
