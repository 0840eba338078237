"""Write the C source of a cffi (API mode) extension from our own headers.

Usage: ``cffi_binding.py MODULE OUT.c HEADER...``

A header is its own binding: whatever stands between the comments ``/* cdef: begin */`` and
``/* cdef: end */`` is plain C that cffi can parse, so a declaration exists once.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cffi import FFI

_CDEF = re.compile(r"/\* cdef: begin \*/(.*?)/\* cdef: end \*/", re.DOTALL)


def main(module: str, out: str, *headers: str) -> None:
    """Emit ``out``, the C source of the extension ``module`` over ``headers``."""
    ffi = FFI()
    for header in headers:
        fragments = _CDEF.findall(Path(header).read_text())
        if not fragments:
            sys.exit(f"{header}: no text between /* cdef: begin */ and /* cdef: end */")
        for fragment in fragments:
            ffi.cdef(fragment)
    includes = "\n".join(f'#include "{Path(header).resolve()}"' for header in headers)
    ffi.set_source(module, includes)
    ffi.emit_c_code(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
