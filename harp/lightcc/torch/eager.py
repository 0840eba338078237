"""Methods that C++ calls while a compiled module runs, which torch.compile is not to trace.

Those of torch's own groups and works are C++, so dynamo sees no frame of them. Ours have frames,
and dynamo would take each for a part of the program: of ``torch.compile(DDP(net))`` the broadcast
of its buffers. `torch.compiler.disable` would import dynamo, which takes seconds.
"""

from __future__ import annotations

import inspect
from typing import TypeVar

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

_Class = TypeVar("_Class", bound=type)


def eager(cls: _Class) -> _Class:
    """Have dynamo leave alone the methods of a class, and all that they call."""
    skipped = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for method in vars(cls).values():
        if inspect.isfunction(method):
            set_code_exec_strategy(method.__code__, skipped)
    return cls
