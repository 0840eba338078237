"""DDP's ``join`` for ranks with uneven inputs, over works made in Python.

A rank signals by an allreduce that it still has inputs. DDP gives the work to its reducer, in C++,
which waits for it in the backward pass and reads the number of ranks with inputs (unless
``divide_by_initial_world_size``). A work of Python allows neither: its ``wait`` is gone with the
last reference in Python, and C++ does not ask it for a result. So the reducer gets a work of C++
that completes with the future.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch._C import _distributed_c10d as c10d
from torch.distributed.algorithms.join import Join

if TYPE_CHECKING:
    import torch.distributed as dist


def patch_join(kind: type[dist.Work]) -> None:
    """Make ``Join.notify_join_context`` return works of C++ in place of works of a ``kind``."""
    notify = Join.notify_join_context
    cpp: Any = c10d  # its stubs leave the function out

    @functools.wraps(notify)
    def notify_by_cpp(joinable: Any) -> Any:
        work = notify(joinable)
        if not isinstance(work, kind):
            return work
        return cpp._create_work_from_future(work.get_future())

    Join.notify_join_context = staticmethod(notify_by_cpp)
