"""Memory that Python's buffer protocol lends out."""

import gc

import numpy as np
import pytest

from harp._memory import Memory


def test_a_buffer_is_what_the_buffer_protocol_asks_for():
    array = np.arange(4, dtype=np.uint8)
    memory = Memory(array.ctypes.data, 4, False, array)
    assert bytes(memory) == b"\0\1\2\3"
    assert len(memory) == 4
    memoryview(memory)[0] = 9
    assert array[0] == 9
    assert memoryview(Memory(array.ctypes.data, 4, True, array)).readonly
    with pytest.raises(ValueError, match="length"):
        Memory(0, -1, False, None)


def test_a_buffer_lets_go_of_its_owner_with_its_last_view():
    import weakref

    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    backing = np.zeros(4, np.uint8)
    memory = Memory(backing.ctypes.data, 4, False, owner)
    view = np.frombuffer(memory, np.uint8)
    del owner, memory
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None
