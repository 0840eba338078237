"""An accelerator for torch whose streams do everything as late as they may: device type ``late``.

late_accelerator.cpp says how. `register` compiles it, once a version of torch, and loads it; a
process cannot take it back, so tests use it in processes of their own.
"""

import os
import sys
from pathlib import Path

import torch
from torch.utils import cpp_extension

from tests.support import ROOT

SOURCE = Path(__file__).with_suffix(".cpp")
NAME = "late"


class Module:
    """What torch asks ``torch.late``."""

    def is_initialized(self):
        return True

    is_available = is_initialized

    def current_device(self):
        return 0

    def device_count(self):
        return 1

    def _is_in_bad_fork(self):
        return False

    def manual_seed_all(self, seed):
        pass


def register():
    """Make torch's accelerator the one of here."""
    folder = ROOT / "build" / f"late-accelerator-{torch.__version__}-{sys.implementation.cache_tag}"
    folder.mkdir(parents=True, exist_ok=True)
    beside = str(Path(sys.executable).parent)  # where ninja is
    os.environ["PATH"] = os.pathsep.join([beside, os.environ.get("PATH", "")])
    cpp_extension.load("late_accelerator", [str(SOURCE)], extra_cflags=["-O0", "-g0"],
                       build_directory=str(folder), is_python_module=False)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, Module())
    torch.utils.generate_methods_for_privateuse1_backend()
