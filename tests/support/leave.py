"""How a rank of a test leaves: at once, with what it printed written out.

On a busy machine gloo's threads (torch 2.13) abort about one in fifteen of the processes that end
with all work done: "terminate called without an active exception".
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def leave() -> NoReturn:
    """End this process as a success, without a turn for other threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
