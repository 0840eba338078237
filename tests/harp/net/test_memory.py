"""Buffers: bytes of a message, given back by release, by their context or with the last view."""

import numpy as np
import pytest

from harp.net.memory import Buffer


def lent(size=4, **of_message):
    array = np.arange(size, dtype=np.uint8)
    return array, Buffer(array.ctypes.data, size, True, array, **of_message)


def test_a_buffer_knows_its_place_in_its_message():
    _, buffer = lent(message=7, offset=4096)
    assert (buffer.message, buffer.offset, bytes(buffer)) == (7, 4096, b"\0\1\2\3")
    assert repr(buffer) == "<Buffer of message 7, offset 4096: 4 bytes>"
    buffer.release()
    assert repr(buffer) == "<Buffer of message 7, offset 4096: given back>"
    with pytest.raises(ValueError, match="this buffer was given back"):
        memoryview(buffer)


def test_a_buffer_with_views_is_not_released_but_may_be_left():
    _, buffer = lent()
    view = np.frombuffer(buffer, np.uint8)
    with pytest.raises(BufferError, match="1 views of this buffer are in use"):
        buffer.release()
    with buffer:
        pass
    assert view.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="given back"):
        memoryview(buffer)
