"""TTF's precision, compilation and inference beside torch's own.

The rows run in processes of their own. Needs root.
"""

from __future__ import annotations

from bench.comparison import compare
from bench.ttf import amp_rows, infer_rows

SUBJECT = compare(__doc__, {**amp_rows.ROWS, **infer_rows.ROWS})
