"""Congestion control of TCP (cnet/virtual/tcp_cc.h) against the formulas that define it."""

from __future__ import annotations

from lab.c_programs import SANITIZED, build, run

SOURCES = [f"cnet/virtual/tcp_{name}.c" for name in ("bbr", "cc", "cubic", "dctcp", "growth")]


def test_windows_follow_their_formulas(tmp_path):
    run(build(tmp_path / "tcp_cc", ["tests/cnet/virtual/test_tcp_cc.c", *SOURCES],
              [*SANITIZED, "-Wl,--no-as-needed", "-lm"]))
