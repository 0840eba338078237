"""The writer of cffi's source from headers: what stands between its comments is bound."""

import subprocess
import sys

from tests.support import ROOT


def bind(folder, *headers):
    paths = []
    for number, text in enumerate(headers):
        paths.append(folder / f"h{number}.h")
        paths[-1].write_text(text)
    out = folder / "out.c"
    return out, subprocess.run([sys.executable, ROOT / "cnet" / "cffi_binding.py", "a._module", out,
                                *paths], capture_output=True, text=True, check=False)


def test_declarations_of_all_headers_are_bound_and_others_are_not(tmp_path):
    out, done = bind(
        tmp_path,
        "/* cdef: begin */\n#define LIMIT 7\n/* cdef: end */\nint hidden(int a);\n"
        "/* cdef: begin */\nint shown(int a);\n/* cdef: end */\n",
        "/* cdef: begin */\nstruct pair { int one, other; };\n/* cdef: end */\n")
    assert done.returncode == 0, done.stderr
    source = out.read_text()
    assert "PyInit__module" in source
    for name in ("shown", "LIMIT", "pair"):
        assert name in source
    assert "hidden" not in source
    for header in ("h0.h", "h1.h"):
        assert f'#include "{tmp_path / header}"' in source


def test_a_header_without_the_comments_is_named_and_nothing_is_written(tmp_path):
    out, done = bind(tmp_path, "int hidden(int a);\n")
    assert done.returncode == 1
    assert done.stderr.strip() == (f"{tmp_path / 'h0.h'}: no text between /* cdef: begin */ and "
                                   "/* cdef: end */")
    assert not out.exists()
