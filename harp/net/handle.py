"""A listener's handle: everything that the connecting end needs."""

from __future__ import annotations

from typing import Any

from harp._cnet import ffi, lib

BYTES: int = ffi.sizeof("struct harp_handle")


def address_text(address: Any) -> str:
    """Format a ``struct harp_address``."""
    room = ffi.new("char[64]")
    lib.harp_address_format(ffi.addressof(address), room, len(room))
    return str(ffi.string(room).decode())


class Handle:
    """Addresses, the listener's id and a secret: 104 bytes, passed on out of band.

    Anyone who has them may connect, so pass them by a channel that only the job can read.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) != BYTES:
            raise ValueError(f"a handle has {BYTES} bytes, not {len(data)}")
        self._c = ffi.new("struct harp_handle *")
        ffi.memmove(self._c, data, BYTES)
        families = {address.family for address in self._c.addresses}
        if not families <= {0, lib.HARP_INET, lib.HARP_MEM, lib.HARP_TCP} or families == {0}:
            raise ValueError("these bytes are not a handle: they hold no address")

    @classmethod
    def from_bytes(cls, data: bytes) -> Handle:
        """Make it of what :meth:`to_bytes` gave. ValueError if it is something else."""
        return cls(bytes(data))

    def to_bytes(self) -> bytes:
        """Give the bytes from which the other end makes it again."""
        return bytes(ffi.buffer(self._c))

    __bytes__ = to_bytes

    @property
    def secret(self) -> bytes:
        """The 16 bytes that all keys are derived from."""
        return bytes(self._c.secret)

    @property
    def addresses(self) -> list[str]:
        """The listener's addresses: one of each of its first four ports."""
        return [address_text(a) for a in self._c.addresses if a.family]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __repr__(self) -> str:
        return f"<Handle of {', '.join(self.addresses)}>"
