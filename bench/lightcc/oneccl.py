"""oneCCL as a reference, if its packages are in `build/oneccl`.

    apt install g++ libhwloc-dev
    python -m venv build/oneccl
    build/oneccl/bin/pip install --no-deps oneccl-devel intel-cmplr-lib-rt impi-rt

The registry has oneCCL's C++ library and no binding, so the ranks are a program that is linked with
its library for CPUs (c/oneccl_allreduce.cpp). They live for one measurement, since oneCCL's threads
look for work without a pause. `CCL_WORKER_OFFLOAD=0` has the ranks do it themselves, which is the
fastest of what was tried where cores are few.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

from bench.arms import BUILT, ROOT, SOURCES
from bench.subject import BenchError

if TYPE_CHECKING:
    from pathlib import Path

HOME = ROOT / "build" / "oneccl"
LIBRARY = HOME / "lib" / "ccl" / "cpu" / "lib" / "libccl.a"
MPIEXEC = HOME / "bin" / "mpiexec.hydra"
SOURCE = SOURCES / "oneccl_allreduce.cpp"


def is_there() -> bool:
    """Whether the packages are installed."""
    return LIBRARY.exists() and MPIEXEC.exists()


def build() -> Path:
    """Build the ranks' program where it is missing or old. Raises BenchError."""
    out, lib = BUILT / "oneccl_allreduce", HOME / "lib"
    if out.exists() and out.stat().st_mtime > SOURCE.stat().st_mtime:
        return out
    BUILT.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["g++", "-O3", "-std=c++17", f"-I{HOME / 'include'}", SOURCE, LIBRARY, f"-L{lib}",
         *(f"-l:{name}" for name in ("libmpi.so.12", "libintlc.so.5", "libsvml.so", "libimf.so")),
         "-lhwloc", "-lpthread", "-ldl", "-lrt", f"-Wl,-rpath,{lib}", "-o", out],
        capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{SOURCE.name} cannot be built:\n{done.stderr[-2000:]}")
    return out


def command(ranks: int, nbytes: int, seconds: float) -> list[str]:
    """Return the command that sums ``nbytes`` for about ``seconds``; its last line is JSON."""
    variables: dict[str, Any] = {"CCL_ATL_TRANSPORT": "mpi", "CCL_WORKER_OFFLOAD": 0,
                                 "CCL_LOG_LEVEL": "error", "I_MPI_ROOT": HOME,
                                 "LD_LIBRARY_PATH": HOME / "lib", "PATH": os.environ["PATH"]}
    return ["env", *(f"{name}={value}" for name, value in variables.items()), str(MPIEXEC),
            "-n", str(ranks), str(build()), str(nbytes), str(seconds)]
