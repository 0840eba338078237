"""A mark for tests that mount a file system of their own, in a namespace that `unshare` makes."""

from __future__ import annotations

import os
import shutil

import pytest

mounts = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None,
                            reason="mounts a file system of its own")
