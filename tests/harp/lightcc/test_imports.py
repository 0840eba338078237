"""Modules that import torch: of `harp.lightcc` those named below, and Horovod's API."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("name", "home", "needs"), [
    ("hook", "torch.gradient_hook", "torch"), ("torchft", "torch.torchft_group", "torchft")])
def test_the_names_that_scripts_import_are_those_of_the_folder_torch(name, home, needs):
    pytest.importorskip(needs)
    public, real = (importlib.import_module(f"harp.lightcc.{one}") for one in (name, home))
    assert public.__all__
    assert [getattr(public, one) for one in public.__all__] == [
        getattr(real, one) for one in public.__all__]


def test_horovods_api_registers_no_backend():
    """It would set the variables of torch.distributed, too, which name the launcher."""
    subprocess.run([sys.executable, "-c", "import sys\n"
                    "try: import torch\nexcept ImportError: sys.exit()\n"
                    "import harp.lightcc.horovod.torch\n"
                    "assert 'harp.lightcc.torch' not in sys.modules"], check=True)
