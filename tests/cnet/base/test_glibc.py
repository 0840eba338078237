"""The first versions of glibc's functions, in place of those that headers of 2.38 ask for."""

from __future__ import annotations

import re
import subprocess

from lab.c_programs import build, run
from tests.support import ROOT


def test_calls_of_newer_headers_become_calls_of_old_functions(tmp_path):
    names = re.findall(r"'(__isoc23_\w+)'", (ROOT / "cnet" / "meson.build").read_text())
    wraps = [f"-Wl,--wrap={name}" for name in names]
    program = build(tmp_path / "test", ["tests/cnet/base/test_glibc.c", "cnet/base/glibc.c"], wraps)
    run(program)
    symbols = subprocess.run(["objdump", "-T", program], capture_output=True, text=True,
                             check=True).stdout
    asked = {name for name in re.findall(r"\(GLIBC_[\d.]+\)\s+(\w+)", symbols)
             if name.startswith(("strto", "__isoc"))}
    assert asked == {"strtol", "strtoul", "strtoull", "__isoc99_vsscanf", "__isoc99_vfscanf"}
