"""The bytes of torch's tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from harp.lightcc.tensors import bytes_of, flat_bytes, lies_flat  # noqa: E402


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("of", [
    lambda whole: whole[:1, -1], lambda whole: whole[2:3, :1], lambda whole: whole[1, 2],
    lambda whole: whole[1:2], lambda whole: whole, lambda whole: whole[:0]])
def test_contiguous_tensors_are_seen_in_place(dtype, of):
    whole = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype))
    part = of(whole)
    assert lies_flat(part)
    found = flat_bytes(part)
    assert found.tobytes() == part.clone().reshape(-1).numpy().tobytes()
    found[:] = 0
    assert not part.any()


def test_others_are_copied_and_written_back():
    whole = torch.arange(12.0).reshape(3, 4)
    column = whole[:, 1]
    found, finish = bytes_of(column)
    found[:] = 0
    assert column.tolist() == [1, 5, 9]
    finish()
    assert column.tolist() == [0, 0, 0]
