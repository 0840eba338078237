"""Messages of SparseLoCo: the largest values of each chunk, in few bits, and their places.

A message has, for each chunk of the vector, a scale (fp32, the largest magnitude; none where values
are sent as they are) and a stream of bits, most significant first: for each of the ``keep`` values
its place in the chunk, then its level. Level q of L stands for scale * (2 q / (L - 1) - 1). The
vector is filled up with zeros to whole chunks, so that all messages have the same size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from harp.lightcc.outer_policy import FP32_BITS, SCALE_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.lightcc.outer_policy import OuterPolicy


def take(error: torch.Tensor, policy: OuterPolicy) -> torch.Tensor:
    """Move the largest values of ``error``, a flat float32 vector, into a message of uint8.

    What the message says is subtracted from ``error``: sent + kept is what was there.
    """
    rows = _in_chunks(error, policy.chunk)
    places = rows.abs().topk(policy.keep, dim=1).indices.sort(dim=1).values
    values = rows.gather(1, places).cpu().numpy()
    levels, scales = _quantise(values, policy.bits)
    sent = torch.from_numpy(_values(levels, scales, policy.bits)).to(error.device)
    rows.scatter_add_(1, places, -sent)
    error.copy_(rows.view(-1)[:len(error)])
    return torch.from_numpy(_pack(places.cpu().numpy(), levels, scales, policy)).to(error.device)


def add(message: torch.Tensor, total: torch.Tensor, policy: OuterPolicy) -> None:
    """Add what a message says to ``total``, a flat float32 vector."""
    rows = torch.zeros(-(-len(total) // policy.chunk), policy.chunk, device=total.device)
    places, values = _unpack(message.cpu().numpy().reshape(len(rows), -1), policy)
    rows.scatter_add_(1, torch.from_numpy(places).to(total.device),
                      torch.from_numpy(values).to(total.device))
    total += rows.view(-1)[:len(total)]


def _in_chunks(vector: torch.Tensor, chunk: int) -> torch.Tensor:
    """Copy a vector to rows of one chunk each."""
    rows = vector.new_zeros(-(-len(vector) // chunk), chunk)
    rows.view(-1)[:len(vector)] = vector
    return rows


def _quantise(values: NDArray[np.float32], bits: int,
              ) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Give levels of values and scales of rows; with 32 bits a level is the value's own bits."""
    scales = np.abs(values).max(axis=1)
    if bits == FP32_BITS:
        return values.view(np.uint32), scales
    steps = np.float32((1 << bits) - 1)
    shares = values / np.where(scales > 0, scales, 1)[:, None]
    return np.rint((shares + 1) / 2 * steps).astype(np.uint32), scales


def _values(levels: NDArray[np.uint32], scales: NDArray[np.float32], bits: int,
            ) -> NDArray[np.float32]:
    if bits == FP32_BITS:
        return levels.view(np.float32)
    steps = np.float32((1 << bits) - 1)
    return scales[:, None] * (2 * levels.astype(np.float32) / steps - 1)


def _pack(places: NDArray[np.int64], levels: NDArray[np.uint32], scales: NDArray[np.float32],
          policy: OuterPolicy) -> NDArray[np.uint8]:
    stream = np.concatenate([_bits_of(places, policy.index_bits), _bits_of(levels, policy.bits)], 2)
    rows = np.packbits(stream.reshape(len(places), -1), axis=1)
    if policy.bits < FP32_BITS:
        rows = np.concatenate([scales.astype("<f4").view(np.uint8).reshape(-1, SCALE_BYTES), rows],
                              axis=1)
    return rows.reshape(-1)


def _unpack(rows: NDArray[np.uint8], policy: OuterPolicy,
            ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    scales = np.zeros(len(rows), np.float32)
    if policy.bits < FP32_BITS:
        scales = np.ascontiguousarray(rows[:, :SCALE_BYTES]).view("<f4").reshape(-1)
        rows = rows[:, SCALE_BYTES:]
    each = policy.index_bits + policy.bits
    stream = np.unpackbits(rows, axis=1, count=policy.keep * each)
    stream = stream.reshape(len(rows), policy.keep, each)
    places = _number_of(stream[:, :, :policy.index_bits])
    levels = _number_of(stream[:, :, policy.index_bits:]).astype(np.uint32)
    return places, _values(levels, scales, policy.bits)


def _bits_of(numbers: NDArray[np.int64] | NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """Give the bits of each number on a further axis, most significant first."""
    shifts = np.arange(bits - 1, -1, -1)
    return ((numbers.astype(np.int64)[..., None] >> shifts) & 1).astype(np.uint8)


def _number_of(stream: NDArray[np.uint8]) -> NDArray[np.int64]:
    weights = 1 << np.arange(stream.shape[-1] - 1, -1, -1, dtype=np.int64)
    return stream.astype(np.int64) @ weights
