"""CRC32C, SipHash-2-4 and keys (docs/inside/wire.md) in plain Python: slow, independent of C.

>>> hex(crc32c(b"123456789"))
'0xe3069283'
>>> hex(siphash(bytes(range(16)), bytes(range(15))))
'0xa129ca6149be45e5'
"""

from __future__ import annotations

from typing import NamedTuple

_MASK = 2**64 - 1


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
        table.append(state)
    return table


_CRC = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC32C of ``data`` (RFC 3720, appendix B.4); 0 if it is empty."""
    state = 0xFFFFFFFF
    for byte in data:
        state = state >> 8 ^ _CRC[(state ^ byte) & 0xFF]
    return state ^ 0xFFFFFFFF


def _left(x: int, bits: int) -> int:
    return (x << bits | x >> 64 - bits) & _MASK


def _rounds(state: list[int], count: int) -> list[int]:
    a, b, c, d = state
    for _ in range(count):
        a = (a + b) & _MASK
        c = (c + d) & _MASK
        b = _left(b, 13) ^ a
        d = _left(d, 16) ^ c
        a = _left(a, 32)
        a = (a + d) & _MASK
        c = (c + b) & _MASK
        d = _left(d, 21) ^ a
        b = _left(b, 17) ^ c
        c = _left(c, 32)
    return [a, b, c, d]


def siphash(key: bytes, data: bytes) -> int:
    """SipHash-2-4 of ``data`` under 16 bytes of ``key`` (Aumasson, Bernstein, INDOCRYPT 2012)."""
    if len(key) != 16:
        raise ValueError(f"a SipHash key has 16 bytes, not {len(key)}")
    low, high = (int.from_bytes(half, "little") for half in (key[:8], key[8:]))
    constants = [int.from_bytes(word, "big")
                 for word in (b"somepseu", b"dorandom", b"lygenera", b"tedbytes")]
    state = [word ^ half for word, half in zip(constants, (low, high, low, high), strict=True)]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at:at + 8], "little")
        state[3] ^= word
        state = _rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xFF
    a, b, c, d = _rounds(state, 4)
    return a ^ b ^ c ^ d


def header_tag(key: bytes, covered: bytes, lap: int = 0) -> int:
    """Give the tag of a header's first 36 bytes; ``lap`` is bits 32 to 55 of its number."""
    return siphash(key, covered + (lap.to_bytes(3, "little") if lap else b""))


class End(NamedTuple):
    """One end's part in the keys of a connection."""

    connection: int
    epoch: int
    nonce: bytes


def _derive(secret: bytes, label: bytes, context: bytes) -> bytes:
    return b"".join(siphash(secret, label + bytes([half]) + context).to_bytes(8, "little")
                    for half in (0, 1))


def key_hello(secret: bytes, listener: int) -> bytes:
    """Key of FIRST, COOKIE and VERSION; ``listener`` is the listener's id."""
    return _derive(secret, b"harp-hi1", listener.to_bytes(8, "little"))


def key_accept(secret: bytes, listener: int, connecting: End) -> bytes:
    """Key of ACCEPT."""
    ids = listener.to_bytes(8, "little") + connecting.connection.to_bytes(8, "little")
    return _derive(secret, b"harp-hi2", ids + connecting.nonce)


def _of_both(connecting: End, listening: End) -> bytes:
    ends = (connecting, listening)
    return (b"".join(end.connection.to_bytes(8, "little") for end in ends)
            + b"".join(end.epoch.to_bytes(2, "little") for end in ends)
            + b"".join(end.nonce for end in ends))


def key_up(secret: bytes, connecting: End, listening: End) -> bytes:
    """Key of all other frames towards the listening end."""
    return _derive(secret, b"harp-up1", _of_both(connecting, listening))


def key_down(secret: bytes, connecting: End, listening: End) -> bytes:
    """Key of all other frames towards the connecting end."""
    return _derive(secret, b"harp-dn1", _of_both(connecting, listening))
