"""The plugin's way around new versions of glibc's functions, which headers of 2.38 ask for."""

from __future__ import annotations

import re
import subprocess

from tests.support import ROOT
from tests.support.c_programs import build, run


def test_calls_of_newer_headers_become_calls_of_old_functions(tmp_path):
    wraps = re.findall(r"'(-Wl,--wrap=\w+)'", (ROOT / "cnet" / "nccl" / "meson.build").read_text())
    program = build(tmp_path / "test", ["tests/cnet/nccl/test_glibc.c", "cnet/nccl/glibc.c"], wraps)
    run(program)
    symbols = subprocess.run(["objdump", "-T", program], capture_output=True, text=True,
                             check=True).stdout
    asked = {name for name in re.findall(r"\(GLIBC_[\d.]+\)\s+(\w+)", symbols)
             if name.startswith(("strto", "__isoc"))}
    assert asked == {"strtol", "strtoul", "strtoull", "__isoc99_vsscanf", "__isoc99_vfscanf"}
