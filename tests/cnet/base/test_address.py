"""Addresses of frames as text, against Python's ipaddress."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harp._cnet import ffi, lib

PORTS = st.integers(0, 2**16 - 1)
# A v6 address of a v4 one is that v4 address here; Python keeps them apart.
HOSTS = st.ip_addresses(v=4) | st.ip_addresses(v=6).filter(lambda ip: ip.ipv4_mapped is None)


def parse(text):
    """Read an address as (IPv6 address, port); give None for other text."""
    address = ffi.new("struct harp_address *")
    if not lib.harp_address_parse(text.encode(), address):
        return None
    assert address.family == lib.HARP_INET
    return ipaddress.IPv6Address(bytes(address.ip)), address.port


def text_of(family, ip, port):
    out = ffi.new("char[64]")
    lib.harp_address_format(ffi.new("struct harp_address *", [family, 0, port, ip]), out, 64)
    return ffi.string(out).decode()


def as_v6(host):
    return host if host.version == 6 else ipaddress.IPv6Address(f"::ffff:{host}")


@given(HOSTS, PORTS)
def test_an_address_is_read_as_it_is_written(host, port):
    in_brackets = f"[{host}]" if host.version == 6 else str(host)
    assert parse(f"{in_brackets}:{port}") == (as_v6(host), port)
    assert parse(str(host)) == (as_v6(host), 0)
    said = text_of(lib.HARP_INET, as_v6(host).packed, port)
    assert parse(said) == (as_v6(host), port)
    assert text_of(lib.HARP_TCP, as_v6(host).packed, port) == f"tcp:{said}"


@given(st.binary(min_size=16, max_size=16))
def test_a_mem_port_is_written_by_its_name(name):
    assert text_of(lib.HARP_MEM, name, 0) == f"mem:{name.hex()}"


@pytest.mark.parametrize("text", [
    "", ":", ":7000", "10.0.0", "10.0.0.256", "10.0.0.1:", "10.0.0.1:65536", "10.0.0.1:-1",
    "10.0.0.1: 7", "10.0.0.1:7x", "10.0.0.1:0x7", "[fd00::1", "[fd00::1]7", "[fd00::1]:",
    "[fd00::1]:70000", "fd00::1::", "fd00::1%eth0", "host.example", "1" * 200])
def test_other_text_is_no_address(text):
    assert parse(text) is None
