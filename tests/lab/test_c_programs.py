"""Archives that C tests share are named after what they are made of."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import lab.c_programs
from lab.c_programs import PLAIN, library

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_another_build_of_the_same_sources_is_another_archive(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources may have changed since the build whose objects a running process has."""
    monkeypatch.setattr(lab.c_programs, "ROOT", tmp_path)
    made = []
    for number in (1, 2, 1):
        one = tmp_path / "one.o"
        subprocess.run(["cc", "-c", "-x", "c", "-", "-o", one], check=True, text=True,
                       input=f"int build_{number};\n")
        monkeypatch.setattr(lab.c_programs, "_objects_of_the_build", lambda one=one: [one])
        made.append(library(PLAIN))
        names = subprocess.run(["nm", made[-1]], check=True, capture_output=True, text=True).stdout
        assert f"build_{number}\n" in names
    assert made[0] == made[2] != made[1]
