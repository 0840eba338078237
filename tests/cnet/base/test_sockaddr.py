"""Addresses for socket calls: IPv4, IPv6 and link-local ones, there and back."""

from lab.c_programs import build, library, run


def test_addresses_for_socket_calls(tmp_path):
    run(build(tmp_path / "sockaddr", ["tests/cnet/base/test_sockaddr.c", str(library())]))
