"""The mean of a vector over islands, with few bits on the wire.

Each rank answers for a part of the vector: it receives that part of all others, adds it up in fp32,
and sends the mean to all, again in few bits. So as many bytes travel as in a ring's sum. A message
has, for each chunk, a scale (fp32, the largest magnitude) and a level for each element; level q of
most ``m = 2 ** (bits - 1) - 1`` stands for scale * q / m, so that zero stays zero. Of 4 bits two
stand in a byte, the first one in the lower half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from harp.lightcc.outer_policy import SCALE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from harp.lightcc.outer_policy import OuterPolicy

_BYTE = 8


def begin(vector: torch.Tensor, policy: OuterPolicy, group: dist.ProcessGroup | None,
          ) -> tuple[Any, Callable[[], torch.Tensor]]:
    """Begin the mean of a float32 vector; what to wait for, and what then gives it."""
    ranks = dist.get_world_size(group)
    chunks = -(-len(vector) // (ranks * policy.chunk))
    whole = vector.new_zeros(ranks * chunks, policy.chunk)
    whole.view(-1)[:len(vector)] = vector
    message = pack(whole, policy.bits)
    came = torch.empty_like(message)
    work = dist.all_to_all_single(came, message, group=group, async_op=True)

    def finish() -> torch.Tensor:
        mean = vector.new_zeros(chunks, policy.chunk)
        for part in came.chunk(ranks):
            mean += unpack(part, policy.chunk, policy.bits)
        own = pack(mean / ranks, policy.bits)
        means = own.new_empty(ranks * len(own))
        dist.all_gather_into_tensor(means, own, group=group)
        return unpack(means, policy.chunk, policy.bits).view(-1)[:len(vector)]
    return work, finish


def pack(rows: torch.Tensor, bits: int) -> torch.Tensor:
    """Give the message of rows of a chunk each, as uint8."""
    most = (1 << (bits - 1)) - 1
    scales = rows.abs().amax(1, keepdim=True)
    levels = (rows / torch.where(scales > 0, scales, 1.0) * most).round().to(torch.int8)
    stored = levels.view(torch.uint8)
    if bits < _BYTE:
        stored = (stored[:, ::2] & 15) | ((stored[:, 1::2] & 15) << 4)
    return torch.cat([scales.view(torch.uint8), stored], 1).view(-1)


def unpack(message: torch.Tensor, chunk: int, bits: int) -> torch.Tensor:
    """Give the rows that a message stands for, in float32."""
    each = SCALE_BYTES + chunk * bits // _BYTE
    rows = message.view(-1, each)
    scales = rows[:, :SCALE_BYTES].contiguous().view(torch.float32)
    stored = rows[:, SCALE_BYTES:]
    if bits < _BYTE:
        stored = torch.stack([stored & 15, stored >> 4], 2).view(len(rows), chunk)
        levels = (stored.to(torch.int8) ^ 8) - 8  # the sign of a half byte
    else:
        levels = stored.contiguous().view(torch.int8)
    return levels.float() * (scales / ((1 << (bits - 1)) - 1))
