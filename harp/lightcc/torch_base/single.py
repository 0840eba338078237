"""Collectives on one tensor a rank, under the names that the installed torch has for them.

torch 2.13 calls them ``all_gather_single`` and ``reduce_scatter_single``, and warns where a script
calls them by the older names.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def all_gather_single(whole: Any, part: Any, **more: Any) -> Any:
    """Gather the parts of all ranks, which are equally long, as one tensor."""
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return call(whole, part, **more)


def reduce_scatter_single(part: Any, whole: Any, **more: Any) -> Any:
    """Add up the tensors of all ranks, and leave each rank its part."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return call(part, whole, **more)
