"""The mean of a vector over islands: of all its values, or of the messages of SparseLoCo.

A caller begins an exchange, computes meanwhile, and waits for it. All islands get the same
bits: the backend makes sums, messages are added up in the order of ranks, and a mean in few bits
comes from the one rank that made it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from harp.lightcc.outer import quantised_mean, sparse
from harp.lightcc.torch_base.single import all_gather_single

if TYPE_CHECKING:
    from collections.abc import Callable

    from harp.lightcc.outer.elastic_peers import Peers
    from harp.lightcc.outer_policy import OuterPolicy


class Exchange:
    """A mean that is under way, or already here if there is no ``work``."""

    def __init__(self, work: Any, finish: Callable[[], torch.Tensor | None]) -> None:
        self._work, self._finish = work, finish

    def wait(self) -> torch.Tensor | None:
        """Wait, and give the mean; None if this peer was too late to take part."""
        if self._work is not None:
            self._work.wait()
        return self._finish()


def begin_mean(vector: torch.Tensor, group: dist.ProcessGroup | None) -> Exchange:
    """Begin the mean of ``vector``, which is overwritten."""
    vector /= dist.get_world_size(group)
    work = dist.all_reduce(vector, group=group, async_op=True)
    return Exchange(work, lambda: vector)


def begin_few_bits_mean(vector: torch.Tensor, error: torch.Tensor, policy: OuterPolicy,
                        group: dist.ProcessGroup | None) -> Exchange:
    """Begin the mean of ``vector`` plus ``error``; ``error`` keeps the part that is not sent."""
    return Exchange(*quantised_mean.begin(vector, error, policy.bits, group, policy.exchange))


def begin_sparse_mean(error: torch.Tensor, policy: OuterPolicy,
                      group: dist.ProcessGroup | None) -> Exchange:
    """Begin the mean of the largest values of ``error``, which keeps the values that are not sent.

    The mean of a value is over the islands that sent it.
    """
    message = sparse.take(error, policy)
    ranks = dist.get_world_size(group)
    messages = message.new_empty(ranks * len(message))
    work = all_gather_single(messages, message, group=group, async_op=True)

    def finish() -> torch.Tensor:
        found = sparse.mean(messages.chunk(ranks), [1.0] * ranks, len(error), policy)
        return found.to(error.device)
    return Exchange(work, finish)


def mean_of_peers(vector: torch.Tensor, peers: Peers, share: float) -> Exchange:
    """Give the mean of the peers' vectors, weighted by their shares; ``vector`` is on the host."""
    mean = peers.mean(vector.numpy(), share)
    return Exchange(None, lambda: None if mean is None else torch.from_numpy(mean))


def few_bits_mean_of_peers(vector: torch.Tensor, error: torch.Tensor, policy: OuterPolicy,
                           peers: Peers, share: float) -> Exchange:
    """Do as `begin_few_bits_mean`, over peers and by weights."""
    mean = peers.mean_in_few_bits(vector.numpy(), error.numpy(), policy.bits, share)
    return Exchange(None, lambda: None if mean is None else torch.from_numpy(mean))


def sparse_mean_of_peers(error: torch.Tensor, policy: OuterPolicy, peers: Peers,
                         share: float) -> Exchange:
    """Do as `begin_sparse_mean`, over peers and by weights."""
    came = peers.messages(sparse.take(error, policy).numpy(), share)

    def finish() -> torch.Tensor | None:
        if came is None:
            return None
        messages, weights = came
        return sparse.mean((torch.from_numpy(one.copy()) for one in messages), weights.tolist(),
                           len(error), policy)
    return Exchange(None, finish)
