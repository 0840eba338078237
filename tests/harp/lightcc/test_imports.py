"""Modules that import torch: of `harp.lightcc` those named below, and Horovod's API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import harp.lightcc

ROOT = Path(harp.lightcc.__file__).parent
NEED_TORCH = {"hook", "torchft"}


def test_other_modules_do_not_import_torch():
    names = [f"harp.lightcc.{path.stem}" for path in ROOT.glob("*.py")
             if path.stem not in NEED_TORCH | {"__init__"}]
    names += [f"harp.lightcc.horovod.{path.stem}" for path in (ROOT / "horovod").glob("[a-z]*.py")]
    assert len(names) > 15
    subprocess.run([sys.executable, "-c", f"import sys, {', '.join(sorted(names))}\n"
                    "assert 'torch' not in sys.modules"], check=True)


def test_horovods_api_registers_no_backend():
    """It would set the variables of torch.distributed, too, which name the launcher."""
    subprocess.run([sys.executable, "-c", "import sys\n"
                    "try: import torch\nexcept ImportError: sys.exit()\n"
                    "import harp.lightcc.horovod.torch\n"
                    "assert 'harp.lightcc.torch' not in sys.modules"], check=True)
