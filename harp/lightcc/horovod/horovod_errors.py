"""Errors, named as in Horovod."""

from __future__ import annotations

from harp.lightcc.failure import GroupError


class HorovodInternalError(GroupError):
    """The ranks are no group any more; ``hvd.elastic.run`` makes a new one and goes on."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  (Horovod's name)
    """Hosts were added or removed; ``hvd.elastic.run`` makes a new group."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class RequestError(RuntimeError):
    """Ranks asked for what does not go together; the group lives on."""


class DuplicateNameError(RequestError, ValueError):
    """A request by a name that is under way; a ValueError as well, as Horovod's is."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is under way; ask for the tensor again when it is over, or under "
                         "another name")


class NotInitializedError(ValueError):
    """``hvd.init()`` was not called."""

    def __init__(self) -> None:
        super().__init__("Horovod has not been initialized; use hvd.init().")
