"""The names of the manual are there after ``import harp.ttf``."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")


def test_parts_are_loaded_when_they_are_used():
    subprocess.run([sys.executable, "-W", "ignore", "-c", (
        "import sys, harp.ttf\nassert 'torch' not in sys.modules\n"
        "harp.ttf.amp.Controller; harp.ttf.infer.optimize; harp.ttf.embedding.DynamicEmbedding\n"
        "try: harp.ttf.nothing\nexcept AttributeError as error: assert 'nothing' in str(error)\n"
        "else: sys.exit(1)")], check=True)
