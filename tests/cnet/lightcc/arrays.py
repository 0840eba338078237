"""Arrays of numpy as C sees them."""

from harp._cnet import ffi


def pointer(array, kind):
    """Give an array's address; NULL for none."""
    return ffi.NULL if array is None else ffi.cast(f"{kind} *", array.ctypes.data)
