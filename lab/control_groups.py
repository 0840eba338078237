"""Control groups of the kernel, in whichever version this host has a controller (needs root)."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@contextmanager
def control_group(controller: str, limits: Mapping[str, str], limits_v1: Mapping[str, str],
                  mount: Path) -> Iterator[list[str]]:
    """Make a group with these limits; give the words that start a command in it.

    Args:
        controller: as "cpu" or "hugetlb".
        limits: text by file name, in version 2.
        limits_v1: the same in version 1.
        mount: an empty directory; the hierarchy is mounted there.
    """
    subprocess.run(["mount", "-t", "cgroup2", "none", mount], check=True)
    unified = controller in (mount / "cgroup.controllers").read_text().split()
    if not unified:
        subprocess.run(["umount", mount], check=True)
        subprocess.run(["mount", "-t", "cgroup", "-o", controller, "none", mount], check=True)
    group = mount / f"harp-test-{os.getpid()}"
    try:
        if unified:
            (mount / "cgroup.subtree_control").write_text(f"+{controller}")
        group.mkdir()
        for name, text in (limits if unified else limits_v1).items():
            (group / name).write_text(text)
        yield ["sh", "-c", f'echo $$ >"{group}/cgroup.procs"; exec "$@"', "sh"]
    finally:
        if group.exists():
            group.rmdir()
        subprocess.run(["umount", mount], check=True)
