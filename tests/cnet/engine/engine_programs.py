"""Programs of tests with engines in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.c_programs import SANITIZED, build, library

if TYPE_CHECKING:
    from pathlib import Path


def engine_program(folder: Path, name: str, flags: list[str] = SANITIZED) -> Path:
    """Build ``tests/cnet/engine/NAME.c`` with cnet's archive."""
    compiling = [flag for flag in flags if not flag.startswith("-Wl,")]
    return build(folder / name, [f"tests/cnet/engine/{name}.c", str(library(compiling))], flags)
