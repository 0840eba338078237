"""Messages of few bits against numpy."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from harp.lightcc.outer import few_bits  # noqa: E402
from harp.lightcc.outer_policy import OuterPolicy  # noqa: E402


def rows(seed: int, chunk: int) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(5, chunk)).astype(np.float32)
    made[1] = 0
    made[2, ::3] = 0
    return made


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("chunk", [2, 16, 4096])
def test_levels_are_those_of_numpy_and_zero_stays_zero(bits, chunk):
    given = rows(bits + chunk, chunk)
    message = few_bits.pack(torch.from_numpy(given), bits)
    policy = OuterPolicy("diloco", 1, bits=bits, chunk=chunk, keep=1)
    assert message.dtype == torch.uint8
    assert len(message) == policy.message_bytes(given.size)
    most = 2 ** (bits - 1) - 1
    scales = np.abs(given).max(1, keepdims=True)
    levels = np.rint(given / np.where(scales > 0, scales, 1) * np.float32(most))
    found = few_bits.unpack(message, chunk, bits).numpy()
    np.testing.assert_allclose(found, levels * (scales / np.float32(most)), rtol=1e-6)
    assert not found[given == 0].any()
    assert np.abs(found - given).max() <= scales.max() / most / 2 * 1.001


def test_a_byte_has_the_first_of_two_in_its_lower_half():
    message = few_bits.pack(torch.tensor([[7.0, -7.0, 1.0, 0.0]]), 4)
    assert message[:4].numpy().view("<f4") == 7.0
    assert message[4:].tolist() == [0x97, 0x01]
