"""The mean of a vector over islands, with few bits on the wire.

Over LightCC it is the allreduce of `harp.lightcc.few_bits`, or of `harp.lightcc.few_bits_ring`;
all messages are sent while the caller computes. Any other backend carries the parts and messages of
`harp.lightcc.few_bits` (`cnet/lightcc/few_bits.h`), so the same bits come out: an all-to-all of
parts while the caller computes, and an all-gather of the parts' means when it waits. The rank that
encoded a value keeps its rounding error, as there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from harp.collectives.few_bits_plan import Parts, message_bytes
from harp.lightcc.few_bits import FewBits, add, take
from harp.lightcc.few_bits_ring import FewBitsRing
from harp.lightcc.torch.backend import LightGroup
from harp.lightcc.torch.work import LightWork
from harp.lightcc.torch_base.single import all_gather_single

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from harp.lightcc.outer_policy import ExchangeAlgorithm

    Floats = NDArray[np.float32]


def begin(vector: torch.Tensor, error: torch.Tensor, bits: int, group: dist.ProcessGroup | None,
          exchange: ExchangeAlgorithm = "direct") -> tuple[Any, Callable[[], torch.Tensor]]:
    """Begin the mean of a float32 vector; what to wait for, and what then gives it.

    ``error``, as long as the vector, has what was lost before and then what is lost now. Vectors
    on a GPU are copied to the host. ValueError for a ring over another backend.
    """
    check_exchange(exchange, group)
    found = dist.group.WORLD if group is None else group
    here, kept = vector.cpu(), error.cpu()
    if isinstance(found, LightGroup):
        algorithm = FewBitsRing if exchange == "ring" else FewBits
        call = algorithm(found.callbacks.program_group, len(here), bits, call="mean of islands")
        work: Any = LightWork([call.allreduce(here.numpy(), kept.numpy(), average=True)], [here])
        finish = nothing
    else:
        work, finish = _begin_by_torch(here.numpy(), kept.numpy(), bits, group, vector.device)

    def give() -> torch.Tensor:
        finish()
        if kept is not error:
            error.copy_(kept)
        return here.to(vector.device)
    return work, give


def check_exchange(exchange: ExchangeAlgorithm, group: dist.ProcessGroup | None) -> None:
    """Raise ValueError for what the group's backend does not carry."""
    found = dist.group.WORLD if group is None else group
    if exchange == "ring" and not isinstance(found, LightGroup):
        raise ValueError("exchange is 'ring', which few bits go over the backend lightcc alone; "
                         f"over {dist.get_backend(group)} give exchange='direct'")


def nothing() -> None:
    """Do nothing: the mean is there."""


def _begin_by_torch(values: Floats, error: Floats, bits: int, group: dist.ProcessGroup | None,
                    device: torch.device) -> tuple[Any, Callable[[], None]]:
    """Begin the all-to-all; what is done after it writes the mean."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    cut = Parts(len(values), ranks, 1, bits)
    parts = [slice(int(cut.start(0, one)), int(cut.start(0, one + 1))) for one in range(ranks)]
    used = [int(cut.message(0, one)) for one in range(ranks)]
    sent = torch.zeros(ranks, int(message_bytes(cut.room, bits)), dtype=torch.uint8)
    for part, nbytes, message in zip(parts, used, sent.numpy(), strict=True):
        take(values[part], error[part], message[:nbytes], bits)
    given = sent.to(device)
    came = torch.empty_like(given)
    work = dist.all_to_all_single(came, given, group=group, async_op=True)

    def finish() -> None:
        own, nbytes = parts[rank], used[rank]
        mean = np.zeros(own.stop - own.start, np.float32)
        for message in came.cpu().numpy():
            add(mean, message[:nbytes], bits)
        mean /= np.float32(ranks)
        lost, said = np.zeros_like(mean), torch.zeros_like(sent[0])
        take(mean, lost, said.numpy()[:nbytes], bits)
        error[own] += lost * np.float32(ranks)
        means = torch.empty_like(given)
        all_gather_single(means.view(-1), said.to(device), group=group)
        values[:] = 0
        for part, nbytes, message in zip(parts, used, means.cpu().numpy(), strict=True):
            add(values[part], message[:nbytes], bits)
    return work, finish
