"""Hash functions against zlib, binascii, Microsoft's vectors and bit-wise Python."""

import binascii
import struct
import zlib
from ipaddress import IPv4Address, IPv6Address

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp._cnet import ffi, lib
from harp.routing import hashes

KEY = hashes.DEFAULT_TOEPLITZ_KEY

TUPLES = st.tuples(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 255),
)

# (source, source port, destination, destination port, hash with ports, hash without), from
# Microsoft, "Verifying the RSS Hash Calculation".
MICROSOFT_IPV4 = [
    ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x51CCC178, 0x323E8FC2),
    ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xC626B0EA, 0xD718262A),
    ("24.19.198.95", 12898, "12.22.207.184", 38024, 0x5C2B394A, 0xD2D0A5DE),
    ("38.27.205.30", 48228, "209.142.163.6", 2217, 0xAFC7327F, 0x82989176),
    ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x10E828A2, 0x5D1809C5),
]
MICROSOFT_IPV6 = [
    ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x40207D3D, 0x2CC18CD5),
    ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0xDDE51BBF, 0x0F0C461C),
    (
        "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
        44251,
        "fe80::200:f8ff:fe21:67cf",
        38024,
        0x02D1FEEF,
        0x4B61E985,
    ),
]


def toeplitz_bitwise(data: bytes, key: bytes) -> int:
    bits = int.from_bytes(key, "big")
    result = 0
    for i in range(8 * len(data)):
        if data[i // 8] >> (7 - i % 8) & 1:
            result ^= bits >> (8 * len(key) - 32 - i) & 0xFFFFFFFF
    return result


def xor_words(data: bytes) -> int:
    result = 0
    for (word,) in struct.iter_unpack(">H", data + b"\0" * (len(data) % 2)):
        result ^= word
    return result


ORACLES = {
    "crc16": lambda data, key: binascii.crc_hqx(data, 0),
    "crc32": lambda data, key: zlib.crc32(data),
    "xor": lambda data, key: xor_words(data),
    "toeplitz": lambda data, key: toeplitz_bitwise(data[:-1], key),
}


@pytest.mark.parametrize("vector", MICROSOFT_IPV4)
def test_toeplitz_gives_microsofts_ipv4_vectors(vector):
    src, src_port, dst, dst_port, with_ports, addresses_only = vector
    tuples = hashes.five_tuples(int(IPv4Address(src)), int(IPv4Address(dst)), src_port, dst_port)
    assert hashes.flow_hash("toeplitz", tuples)[0] == with_ports
    data = IPv4Address(src).packed + IPv4Address(dst).packed
    assert lib.harp_toeplitz(data, len(data), KEY, 0) == addresses_only


@pytest.mark.parametrize("vector", MICROSOFT_IPV6)
def test_toeplitz_gives_microsofts_ipv6_vectors(vector):
    src, src_port, dst, dst_port, with_ports, addresses_only = vector
    addresses = IPv6Address(src).packed + IPv6Address(dst).packed
    packed = addresses + struct.pack(">HHB", src_port, dst_port, hashes.TCP)
    row = np.frombuffer(packed, np.uint8)[None]
    assert hashes.hash_packed("toeplitz", row)[0] == with_ports
    assert lib.harp_toeplitz(addresses, len(addresses), KEY, 0) == addresses_only


@settings(deadline=None)
@given(st.lists(TUPLES, min_size=1, max_size=20), st.binary(min_size=40, max_size=40))
def test_batches_agree_with_the_oracles(rows, key):
    packed = [struct.pack(">IIHHB", *row) for row in rows]
    array = np.frombuffer(b"".join(packed), np.uint8).reshape(-1, 13)
    fields = hashes.five_tuples(*zip(*rows, strict=True))
    for name, oracle in ORACLES.items():
        expected = [oracle(data, key) for data in packed]
        assert hashes.hash_packed(name, array, key=key).tolist() == expected
        assert hashes.flow_hash(name, fields, key=key).tolist() == expected


@settings(deadline=None)
@given(st.binary(max_size=36), st.integers(0, 2**32 - 1))
def test_single_hashes_of_any_length_and_seed(data, seed):
    size = len(data)
    assert lib.harp_crc16(data, size, seed) == binascii.crc_hqx(data, seed & 0xFFFF)
    assert lib.harp_crc32(data, size, seed) == zlib.crc32(data, seed)
    assert lib.harp_xor16(data, size, seed) == xor_words(data) ^ seed & 0xFFFF
    assert lib.harp_toeplitz(data, size, KEY, seed) == toeplitz_bitwise(data, KEY) ^ seed


@settings(deadline=None)
@given(TUPLES, st.integers(0, 2**32 - 1))
def test_seed_is_the_registers_first_value(row, seed):
    data = struct.pack(">IIHHB", *row)
    fields = hashes.five_tuples(*row)
    assert hashes.flow_hash("crc32", fields, seed=seed)[0] == zlib.crc32(data, seed)
    assert hashes.flow_hash("crc16", fields, seed=seed)[0] == binascii.crc_hqx(data, seed & 0xFFFF)


@settings(deadline=None)
@given(TUPLES, TUPLES, st.sampled_from(list(ORACLES)))
def test_every_function_of_switch_chips_is_affine(a, b, name):
    both = tuple(x ^ y for x, y in zip(a, b, strict=True))
    ha, hb, hab, h0 = (
        hashes.flow_hash(name, hashes.five_tuples(*row))[0] for row in (a, b, both, (0,) * 5)
    )
    assert hab == ha ^ hb ^ h0


def test_a_seed_alone_cannot_undo_polarisation_but_a_salt_does():
    ports = np.arange(49152, 65536)
    tuples = hashes.five_tuples(1, 2, ports)
    first, second = (hashes.flow_hash("crc32", tuples, seed=seed) for seed in (0, 12345))
    met = first % 8 == 3
    assert len(np.unique(second[met] % 8)) == 1
    salted = np.bincount(hashes.pick(first[met], 12345, 8), minlength=8)
    assert salted.min() > 0.8 * met.sum() / 8


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(1, 512))
def test_pick_stays_in_range_and_salt_zero_is_plain_modulo(value, salt, ways):
    assert 0 <= hashes.pick(value, salt, ways)[0] < ways
    assert hashes.pick(value, 0, ways)[0] == value % ways
    assert hashes.pick(value, salt, ways)[0] == lib.harp_ecmp_pick(value, salt, ways)


def test_empty_batches_hash_to_nothing():
    assert len(hashes.flow_hash("crc32", hashes.five_tuples([], [], []))) == 0
    assert len(hashes.hash_packed("crc16", np.empty((0, 13), np.uint8))) == 0


def test_default_key_has_its_published_ends():
    assert len(KEY) == 40
    assert KEY[:4].hex() == "6d5a56da"
    assert KEY[-2:].hex() == "01fa"
    assert ffi.sizeof("uint32_t") == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hashes.flow_hash("md5", hashes.five_tuples(1, 2, 3)), "unknown hash function"),
        (lambda: hashes.flow_hash("crc32", hashes.five_tuples(1, 2, 3), key=b"x"), "40 bytes"),
        (lambda: hashes.five_tuples(1, 2, 65536), "src_port must lie between 0 and 65535"),
        (lambda: hashes.five_tuples(-1, 2, 3), "src_ip must lie between"),
        (lambda: hashes.hash_packed("xor", np.zeros((2, 12), np.uint8)), "13 or 37 bytes"),
        (lambda: hashes.pick(1, 1, 0), "out of none"),
    ],
)
def test_wrong_input_gives_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
