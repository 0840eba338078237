"""A package loads its parts when their names are used, and only then."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harp.lazy_names import lazy_names


def test_a_name_is_loaded_when_it_is_used() -> None:
    load = lazy_names("a package", {"sqrt": "math:sqrt", "path": "os.path:"})
    assert load("sqrt")(9) == 3
    assert load("path").basename("a/b") == "b"


def test_a_name_that_a_package_does_not_have_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'a package' has no attribute 'cbrt'"):
        lazy_names("a package", {"sqrt": "math:sqrt"})("cbrt")


def test_a_part_that_cannot_be_loaded_says_why() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        lazy_names("a package", {"part": "no_such_module:"})("part")


@pytest.mark.parametrize("package", ["harp", "harp.angelptm", "harp.ttf"])
def test_a_package_loads_neither_torch_nor_the_stack_before_a_name_is_used(package: str) -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", f"import sys, {package}; print(*sys.modules)"],
        capture_output=True, text=True, check=True).stdout.split()
    assert package in loaded
    assert not {"torch", "harp._cnet"} & set(loaded)


@pytest.mark.parametrize("package", ["harp", "harp.angelptm"])
def test_every_public_name_is_found(package: str) -> None:
    pytest.importorskip("torch")
    module = __import__(package, fromlist=["*"])
    assert module.__all__
    assert all(getattr(module, name) is not None for name in module.__all__)
