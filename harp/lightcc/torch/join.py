"""DDP's ``join``, for ranks with different numbers of inputs, over works that are made in Python.

A rank tells the others by an allreduce that it still has inputs. DDP gives the work to its reducer,
in C++, which waits for it in the backward pass and reads how many ranks have (unless
``divide_by_initial_world_size``). Neither can be with a work of Python: its ``wait`` is gone when
the last reference of Python is, and C++ does not ask it for a result. So the reducer gets a work of
C++ that is over when the future is.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch._C import _distributed_c10d as c10d
from torch.distributed.algorithms.join import Join

if TYPE_CHECKING:
    import torch.distributed as dist


def give_reducers_works_of_cpp(kind: type[dist.Work]) -> None:
    """Let works of a ``kind`` leave ``Join.notify_join_context`` as works of C++."""
    notify = Join.notify_join_context
    cpp: Any = c10d  # whose stubs leave the function out

    @functools.wraps(notify)
    def notify_by_cpp(joinable: Any) -> Any:
        work = notify(joinable)
        if not isinstance(work, kind):
            return work
        return cpp._create_work_from_future(work.get_future())

    Join.notify_join_context = staticmethod(notify_by_cpp)
