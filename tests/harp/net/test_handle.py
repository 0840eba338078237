"""Handles of listeners: as bytes, and without their secret in sight."""

import pytest

import harp.net.engine
from tests.harp.net.pairs import PATIENCE_S, engine


def test_a_handle_travels_as_bytes_and_hides_its_secret():
    with engine("udp") as a, a.listen() as listener:
        handle = listener.handle
        data = handle.to_bytes()
        assert len(data) <= 128
        assert harp.Handle.from_bytes(data) == handle
        assert hash(harp.Handle(data)) == hash(handle)
        assert handle.secret in data
        assert handle.secret.hex() not in repr(handle)
        with a.connect(data, timeout=PATIENCE_S):
            pass


@pytest.mark.parametrize("data", [b"", bytes(104), b"\xff" * 104, bytes(200)])
def test_bytes_that_are_no_handle_are_refused(data):
    with pytest.raises(ValueError, match="handle"):
        harp.Handle(data)


def test_a_handle_names_the_addresses_of_its_listener():
    ports = [harp.Port("udp", address="127.0.0.1"), harp.Port("tcp", address="127.0.0.1")]
    with harp.Engine(ports) as a, a.listen() as listener:
        udp, tcp = listener.handle.addresses
        assert udp.startswith("127.0.0.1:")
        assert "127.0.0.1:" in tcp
        assert repr(listener.handle) == f"<Handle of {udp}, {tcp}>"
        with a.listen() as other:
            assert other.handle != listener.handle
