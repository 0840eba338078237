"""Fragments of a model: parameters as one flat vector, and the part of it that a rank answers for.

A rank of an island of R answers for one R-th of each fragment: it sends that part's difference to
its like of other islands, and keeps that part of the outer state. Under FSDP2 parameters are
divided already, and a rank answers for all that it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from harp.lightcc.torch_base.single import all_gather_single

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def local_of(parameter: torch.Tensor) -> torch.Tensor:
    """Give the elements that this rank holds, as a tensor on the same memory."""
    held = parameter.detach()
    return held.to_local() if isinstance(held, DTensor) else held


class Fragment:
    """Parameters that are sent together.

    Args:
        parameters: by name, in the model's order.
        within: the ranks that divide the fragment; None: nobody does.
        device: where the anchor is; the parameters' if not given.

    """

    def __init__(self, parameters: Mapping[str, torch.Tensor],
                 within: dist.ProcessGroup | None,
                 device: torch.device | None = None) -> None:
        self.parameters = dict(parameters)
        self.elements = sum(held.numel() for held in self._held)
        self._within = within
        ranks = 1 if within is None else dist.get_world_size(within)
        place = 0 if within is None else dist.get_rank(within)
        self.room = -(-self.elements // ranks)
        """Elements of this rank's part; the last part may be filled up."""
        self._own = slice(place * self.room, (place + 1) * self.room)
        self._whole = self.room * ranks
        device = device or next((held.device for held in self._held), None)
        self.anchor = torch.zeros(self.room, device=device)
        """This rank's part of the parameters as all islands last agreed on them."""

    @property
    def _held(self) -> list[torch.Tensor]:
        """Parts that this rank holds: `Module.to` and `p.data = ...` give parameters new memory."""
        return [local_of(parameter) for parameter in self.parameters.values()]

    def flatten(self, tensors: Sequence[torch.Tensor] | None = None) -> torch.Tensor:
        """Give this rank's part of tensors like the parameters, or of these, in float32."""
        held = self._held if tensors is None else tensors
        whole = self.anchor.new_zeros(self._whole)
        if held:
            torch.cat([one.reshape(-1).to(whole.device, torch.float32) for one in held],
                      out=whole[:self.elements])
        return whole[self._own].clone() if len(whole) > self.room else whole

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Give tensors like the parameters, in float32, of the parts of all ranks of the island."""
        whole = part
        if self._within is not None and self._whole > self.room:
            whole = part.new_empty(self._whole)
            all_gather_single(whole, part.contiguous(), group=self._within)
        pieces = whole[:self.elements].split([held.numel() for held in self._held])
        return [piece.view(held.shape) for piece, held in zip(pieces, self._held, strict=True)]

    def write(self, part: torch.Tensor, local_share: float = 0.0) -> None:
        """Make the parameters those of ``part``, but for ``local_share`` of what they are."""
        for held, new in zip(self._held, self.gather(part), strict=True):
            held.copy_(new if not local_share
                       else new.to(held.device).lerp(held.float(), local_share))
