"""The hash functions of ``cnet/base/flow_hash.h`` over numpy arrays of five-tuples.

``flow_hash("crc32", tuples)`` hashes a million flows in some ten milliseconds; ``pick`` turns a
hash into the index of a next hop as a switch with a given salt does. The header says what each
function computes, why a seed alone does not decorrelate two switches, and what the salt is for.
``linux`` is a Linux router's own hash (``cnet/base/flow_hash_linux.h``): there the salt is the seed
of the hash. `FlowHashes` picks by every function alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from harp._cnet import ffi, lib

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

HashName = Literal["crc16", "crc32", "xor", "toeplitz", "linux"]
NAMES: tuple[HashName, ...] = get_args(HashName)
"""The functions by name; a name's place here is its number in C."""
_LINUX = NAMES.index("linux")

TCP, UDP = 6, 17
"""IP protocol numbers."""

ROCE_PORT = 4791
"""Destination UDP port of RoCEv2 (IANA)."""

FIRST_DYNAMIC_PORT, DYNAMIC_PORTS_N = 49152, 2**14
"""The dynamic ports of RFC 6335 section 6; source ports come from them."""

DEFAULT_TOEPLITZ_KEY = bytes(ffi.buffer(lib.harp_toeplitz_default_key))
"""The 40-byte key that Microsoft publishes with the RSS verification vectors."""


class FiveTuples(NamedTuple):
    """IPv4 five-tuples as one array for each field, all of one length, in host byte order."""

    src_ip: NDArray[np.uint32]
    dst_ip: NDArray[np.uint32]
    src_port: NDArray[np.uint16]
    dst_port: NDArray[np.uint16]
    proto: NDArray[np.uint8]

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> FiveTuples:
        """Select five-tuples by index or mask."""
        src_ip, dst_ip, src_port, dst_port, proto = self
        return FiveTuples(
            src_ip[which], dst_ip[which], src_port[which], dst_port[which], proto[which]
        )


def five_tuples(
    src_ip: ArrayLike,
    dst_ip: ArrayLike,
    src_port: ArrayLike,
    dst_port: ArrayLike = ROCE_PORT,
    proto: ArrayLike = UDP,
) -> FiveTuples:
    """Broadcast the fields against each other into contiguous arrays of the right types.

    Raises ValueError where a value does not fit its header field.
    """
    fields = np.broadcast_arrays(*np.atleast_1d(src_ip, dst_ip, src_port, dst_port, proto))
    for name, field, bits in zip(FiveTuples._fields, fields, (32, 32, 16, 16, 8), strict=True):
        if field.size and not 0 <= field.min() <= field.max() < 2**bits:
            raise ValueError(f"{name} must lie between 0 and {2**bits - 1}")
    types = (np.uint32, np.uint32, np.uint16, np.uint16, np.uint8)
    return FiveTuples(*(np.ascontiguousarray(f, k) for f, k in zip(fields, types, strict=True)))


def flow_hash(
    function: HashName, tuples: FiveTuples, *, seed: int = 0, key: bytes = DEFAULT_TOEPLITZ_KEY
) -> NDArray[np.uint32]:
    """Hash each five-tuple; ``key`` (40 bytes) is Toeplitz's and ignored by the others.

    Raises ValueError for an unknown function or a key of another length.
    """
    number = function_number(function)
    _check_key(key)
    out = np.empty(len(tuples.src_ip), np.uint32)
    kinds = ("uint32_t[]", "uint32_t[]", "uint16_t[]", "uint16_t[]", "uint8_t[]")
    fields = [ffi.from_buffer(kind, field) for kind, field in zip(kinds, tuples, strict=True)]
    lib.harp_hash_fields(number, *fields, len(out), key, seed, ffi.from_buffer("uint32_t[]", out))
    return out


def hash_packed(
    function: HashName,
    tuples: NDArray[np.uint8],
    *,
    seed: int = 0,
    key: bytes = DEFAULT_TOEPLITZ_KEY,
) -> NDArray[np.uint32]:
    """Hash packed five-tuples, an array of shape (count, 13) for IPv4 or (count, 37) for IPv6."""
    number = function_number(function)
    _check_key(key)
    if tuples.ndim != 2 or tuples.shape[1] not in {lib.HARP_TUPLE4_BYTES, lib.HARP_TUPLE6_BYTES}:
        raise ValueError(f"packed five-tuples have 13 or 37 bytes each, not shape {tuples.shape}")
    tuples = np.ascontiguousarray(tuples, np.uint8)
    out = np.empty(len(tuples), np.uint32)
    lib.harp_hash_packed(
        number,
        ffi.from_buffer("uint8_t[]", tuples),
        tuples.shape[1],
        len(out),
        key,
        seed,
        ffi.from_buffer("uint32_t[]", out),
    )
    return out


def pick(hashes: ArrayLike, salt: ArrayLike, ways: ArrayLike) -> NDArray[np.uint32]:
    """Index of the next hop that a switch with ``salt`` takes out of ``ways`` (all > 0)."""
    arrays = np.broadcast_arrays(*np.atleast_1d(hashes, salt, ways))
    inputs = [np.ascontiguousarray(a, np.uint32) for a in arrays]
    if not inputs[2].all():
        raise ValueError("a next hop cannot be picked out of none")
    out = np.empty(len(inputs[0]), np.uint32)
    pointers = [ffi.from_buffer("uint32_t[]", a) for a in inputs]
    lib.harp_ecmp_pick_batch(*pointers, len(out), ffi.from_buffer("uint32_t[]", out))
    return out


class FlowHashes:
    """Five-tuples as switches hash them: each function that some switch uses is computed once."""

    def __init__(self, tuples: FiveTuples, functions: NDArray[np.uint8]) -> None:
        """Hash ``tuples`` by all ``functions``, numbers in ``NAMES``."""
        self._tuples = tuples
        self._hashed = np.zeros((len(NAMES), len(tuples.src_ip)), np.uint32)
        for number in np.unique(functions):
            if number != _LINUX:
                self._hashed[number] = flow_hash(NAMES[number], tuples)

    def pick(self, flow: NDArray[np.int64], function: NDArray[np.uint8], salt: NDArray[np.uint32],
             ways: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Index of the next hop of each ``flow`` at a switch of this function and salt."""
        picked = pick(self._hashed[function, flow], salt, ways)
        linux = np.flatnonzero(function == _LINUX)
        if len(linux):
            picked[linux] = _linux_next_hops(self._tuples.take(flow[linux]), salt[linux],
                                             ways[linux])
        return picked


def _linux_next_hops(tuples: FiveTuples, seed: NDArray[np.uint32],
                     ways: NDArray[np.int64]) -> NDArray[np.uint32]:
    out = np.empty(len(seed), np.uint32)
    kinds = ("uint32_t[]", "uint32_t[]", "uint16_t[]", "uint16_t[]", "uint8_t[]")
    fields = [ffi.from_buffer(kind, field) for kind, field in zip(kinds, tuples, strict=True)]
    fields += [ffi.from_buffer("uint32_t[]", np.ascontiguousarray(each, np.uint32))
               for each in (seed, ways)]
    lib.harp_linux_next_hops(*fields, len(out), ffi.from_buffer("uint32_t[]", out))
    return out


def function_number(function: str) -> int:
    """Find the number of a hash function in C; ValueError names the functions there are."""
    if function not in NAMES:
        raise ValueError(f"unknown hash function {function!r}; there are {', '.join(NAMES)}")
    return NAMES.index(function)


def _check_key(key: bytes) -> None:
    if len(key) != lib.HARP_TOEPLITZ_KEY_BYTES:
        raise ValueError(f"a Toeplitz key has 40 bytes, not {len(key)}")
