"""Files of tensors: the package of the format reads what parts were written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from harp.tensor_files import CheckpointError, read_tensors, write_header, write_tensors


def test_parts_that_several_write_are_whole_tensors_in_any_reader(tmp_path):
    path, whole = tmp_path / "some.safetensors", np.arange(24, dtype="f4")
    narrow = torch.arange(6).to(torch.bfloat16)

    def tensors(begin, end, *, last):
        parts = [(4 * begin, whole[begin:end].tobytes())]
        bits = [(0, narrow.view(torch.uint8).numpy().tobytes())] if last else []
        return [("a", "float32", [4, 6], lambda: parts), ("none", "int64", [0], list),
                ("b", "bfloat16", [6], lambda: bits)]

    write_header(path, tensors(0, 0, last=False))
    write_tensors(path, tensors(0, 10, last=False))
    write_tensors(path, tensors(10, 24, last=True))
    expected = {"a": torch.from_numpy(whole).view(4, 6), "none": torch.empty(0, dtype=torch.int64),
                "b": narrow}
    for found in (load_file(path), {name: one.tensor() for name, one in
                                    read_tensors(path).items()}):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], one) for name, one in expected.items())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="ends before tensor b: it was truncated"):
        read_tensors(path)


def test_a_header_that_says_another_shape_is_refused(tmp_path):
    path = tmp_path / "some.safetensors"
    write_header(path, [("a", "float32", [4, 6], list)])
    whole = path.read_bytes()
    for shape, says in ((b"[5, 6]", r"96 bytes for tensor a: they are not float32 of shape \[5"),
                        (b"null  ", "does not begin with a header of safetensors")):
        path.write_bytes(whole.replace(b"[4, 6]", shape))
        with pytest.raises(CheckpointError, match=says):
            read_tensors(path)
