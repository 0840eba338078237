"""The Python engine's tests once more, with the extensions under Address- and UBSanitizer.

The harp package is copied into a folder with extensions built for it, and this folder comes before
the installed package. The interpreter itself is not instrumented: what it never frees says nothing,
so leaks are not looked for. Nothing else is suppressed.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from lab.c_programs import SANITIZED, library
from tests.support import ROOT
from tests.support.levels import long

WARNINGS_OF_CFFI = ["-Wno-unused-parameter", "-Wno-missing-field-initializers",
                    "-Wno-cast-function-type", "-Wno-sign-compare"]
SITE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "Mesonpy" not in type(finder).__name__]
sys.path.insert(0, {folder!r})
"""


def compiled(out, *sources, extra=()):
    include = sysconfig.get_path("include")
    command = [os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", "-g",
               *extra, *SANITIZED, "-shared", "-I", include, "-I", str(ROOT / "cnet"),
               *map(str, sources), "-pthread", "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr


def headers():
    """Extensions that meson.build binds, in its order."""
    text = (ROOT / "cnet" / "meson.build").read_text()
    names = text.split("cnet_headers = files(")[1].split(")")[0]
    return [ROOT / "cnet" / name.strip().strip("'") for name in names.split(",")]


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """Make the folder with the sanitized package."""
    folder = tmp_path_factory.mktemp("sanitized")
    package = folder / "harp"
    package.mkdir()
    for path in (ROOT / "harp").iterdir():
        if path.suffix != ".so" and path.name != "__pycache__":
            (package / path.name).symlink_to(path)
    (folder / "lab").symlink_to(ROOT / "lab")
    for name in ("sim", "tests"):
        (folder / name).symlink_to(ROOT / name)
    binding = folder / "harp_cnet.c"
    subprocess.run([sys.executable, str(ROOT / "cnet" / "cffi_binding.py"), "harp._cnet",
                    str(binding), *map(str, headers())], check=True, capture_output=True)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    compiled(package / f"_cnet{suffix}", binding,
             ROOT / "cnet" / "nccl" / "settings.c", library(SANITIZED), extra=WARNINGS_OF_CFFI)
    compiled(package / f"_memory{suffix}", ROOT / "harp" / "memory.c")
    (folder / "sitecustomize.py").write_text(SITE.format(folder=str(folder)))
    return folder


def asan_library():
    path = subprocess.run([os.environ.get("CC", "cc"), "-print-file-name=libasan.so"],
                          capture_output=True, text=True, check=True).stdout.strip()
    return path if Path(path).is_absolute() else None


def python(folder, *arguments):
    preload = asan_library()
    if preload is None:
        pytest.skip("this compiler has no libasan.so to load before the interpreter")
    environment = os.environ | {
        "LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True,
                          check=False, timeout=1200, cwd=folder, env=environment)


@long
def test_the_sanitizer_would_see_an_error(sanitized):
    done = python(sanitized, "-c", "import harp._cnet as c; "
                                   "c.lib.harp_crc32c(c.ffi.new('uint8_t[4]'), 64)")
    assert done.returncode
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr


@long
@pytest.mark.parametrize("files", [
    [f"net/test_{name}.py" for name in ("engine", "aio", "frames", "engine_limits",
                                        "engine_process")],
    ["lightcc/test_elements.py"], ["lightcc/test_call_queue.py"]],
    ids=["engine", "elements", "calls at once"])
def test_python_tests_pass_under_sanitizers(sanitized, files):
    done = python(sanitized, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
                  "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(sanitized),
                  *(f"tests/harp/{file}" for file in files))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
    assert "Sanitizer" not in done.stderr
