"""TTF beside torch and its peers: tables, precision, compilation and inference.

The modules of this folder say what their rows measure. Tables need up to 9 GB. Needs root.
"""

from __future__ import annotations

from bench.comparison import compare
from bench.ttf import amp_rows, compile_rows, disk_rows, embedding_rows, infer_rows, spread_rows

ROWS = {**embedding_rows.ROWS_BY_ID, **disk_rows.ROWS_BY_ID, **spread_rows.ROWS, **amp_rows.ROWS,
        **compile_rows.ROWS, **infer_rows.ROWS}

SUBJECT = compare(__doc__, ROWS)
