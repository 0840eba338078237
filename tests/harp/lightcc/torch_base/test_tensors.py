"""The bytes of torch's tensors."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from harp.lightcc.torch_base.tensors import bytes_of, flat_bytes, lies_flat  # noqa: E402


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


def test_a_tensor_whose_bytes_were_seen_may_be_resized():
    """As FullyShardedDataParallel does between two collectives; torch forbids it after numpy()."""
    tensor = torch.arange(12.0)
    flat_bytes(tensor)
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(48)
    assert flat_bytes(tensor).shape == (48,)


def test_bytes_keep_the_memory_of_their_tensor():
    tensor = torch.full((1 << 20,), 7, dtype=torch.uint8)
    kept, found = weakref.ref(tensor.untyped_storage()), flat_bytes(tensor)
    del tensor
    gc.collect()
    assert kept() is not None
    assert (found == 7).all()


@pytest.mark.parametrize("of", [torch.conj, lambda data: torch.imag(torch.conj(data))])
def test_conjugates_and_negatives_are_sent_as_they_are_seen(of):
    whole = torch.tensor([1 + 2j, 3 - 4j])
    seen = of(whole)
    found, finish = bytes_of(seen)
    assert found.tobytes() == seen.clone().numpy(force=True).tobytes()
    found[:] = bytes_of(2 * seen.clone())[0]
    wanted = (2 * seen).tolist()
    finish()
    assert seen.tolist() == wanted
