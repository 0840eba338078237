"""What a rank sends the ranks of its host goes straight through memory (`cnet/lightcc/direct.h`).

Both ends of a pair must have opened it: where HARP_FAULTS has datagrams lost, or HARP_PORT says
so, it goes through the network.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from harp._cnet import ffi, lib
from harp.net.errors import OpenError

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("harp.lightcc")


class Direct:
    """A rank's end of it."""

    def __init__(self, ranks: int, environment: Mapping[str, str]) -> None:
        self._ranks = ranks
        self._on = not environment.get("HARP_FAULTS") and environment.get(
            "HARP_PORT", "auto") in {"auto", "mem"}
        self._c: Any = ffi.NULL
        self._names: dict[int, bytes] = {}

    def open(self) -> str:
        """Open it, and give the name to be found by, or none."""
        if not self._on:
            return ""
        made, why = ffi.new("struct harp_direct **"), ffi.new("char[]", lib.HARP_WHY_BYTES)
        if lib.harp_direct_open(made, self._ranks, why) != 0:
            log.debug("all goes through the network: %s", ffi.string(why).decode())
            return ""
        self._c = made[0]
        return bytes(ffi.buffer(lib.harp_direct_name(self._c), lib.HARP_DIRECT_NAME_BYTES)).hex()

    def meet(self, peer: int, name: str) -> None:
        """Learn the name of another rank of this host."""
        if self._c != ffi.NULL and name:
            self._names[peer] = bytes.fromhex(name)

    def link(self, peer: int) -> None:
        """Link up with a rank, if both are of one host and have opened it. Raises OpenError."""
        name, why = self._names.get(peer), ffi.new("char[]", lib.HARP_WHY_BYTES)
        if name is not None and lib.harp_direct_link(self._c, peer, name, why) != 0:
            raise OpenError(ffi.string(why).decode())

    @property
    def c_direct(self) -> Any:
        """The ``struct harp_direct *``, or NULL."""
        return self._c

    def close(self) -> None:
        """Give it back."""
        lib.harp_direct_close(self._c)
        self._c = ffi.NULL
