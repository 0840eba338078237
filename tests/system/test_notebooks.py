"""Every notebook runs from top to bottom, and the outputs stored in it are what the code says.

Of text outputs the numbers are compared, with a small tolerance; of pictures only their presence.
After a change that moves an answer, read the prose again, and store the new outputs:

    python -m tests.system.test_notebooks
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import ROOT
from tests.support.levels import long

if TYPE_CHECKING:
    from pathlib import Path

    from nbformat import NotebookNode

NOTEBOOKS = ROOT / "notebooks"
NAMES = ("1-where-the-time-goes", "2-bonds-hashes-and-planned-routes",
         "3-settings-for-your-own-cluster", "4-a-sweep-and-its-front", "5-your-own-model")
LIMIT_S = 600
"""For one cell, on a busy machine; each notebook takes some ten seconds."""
MOST_BYTES = 400_000
REFRESH = ("an answer has moved: read the prose again, then run "
           "python -m tests.system.test_notebooks")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def read(path: Path) -> NotebookNode:
    import nbformat  # every worker collects this file, and imports of notebooks take seconds

    return nbformat.read(path, as_version=4)


def executed(path: Path) -> NotebookNode:
    """Run a notebook in its own folder; returns it with new outputs and nothing volatile."""
    from jupyter_client import KernelManager
    from nbclient import NotebookClient

    class OwnKernel(KernelManager):
        """A kernel of this very interpreter, whatever kernels are installed for the user."""

        def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
            return [sys.executable, "-m", "ipykernel_launcher", "-f", self.connection_file,
                    "--log-level=ERROR", *(extra_arguments or [])]

    notebook = read(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(notebook, timeout=LIMIT_S, kernel_manager_class=OwnKernel,
                            record_timing=False, coalesce_streams=True,
                            resources={"metadata": {"path": path.parent}})
    # A kernel inherits the environment: warnings and back ends of the caller are not its own.
    env = {key: value for key, value in os.environ.items()
           if key not in ("MPLBACKEND", "PYTHONWARNINGS", "COLUMNS")}
    client.execute(env=env)
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def store(path: Path) -> None:
    """Run a notebook and write it with its outputs; pictures with 96 colours, to keep it small."""
    import nbformat

    notebook = executed(path)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])
    nbformat.write(notebook, path)


def smaller(png: str) -> str:
    """A picture (base64) with a palette instead of full colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    packed = io.BytesIO()
    image.quantize(96, dither=Image.Dither.NONE).save(packed, format="png", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


def texts(notebook: NotebookNode) -> list[str]:
    """All that the cells print, a string a cell."""
    return ["".join(output.get("text", "") or output.get("data", {}).get("text/plain", "")
                    for output in cell.outputs if "image/png" not in output.get("data", {}))
            for cell in notebook.cells if cell.cell_type == "code"]


def pictures(notebook: NotebookNode) -> list[int]:
    """Number of pictures of each cell."""
    return [sum("image/png" in output.get("data", {}) for output in cell.outputs)
            for cell in notebook.cells if cell.cell_type == "code"]


@long
@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs_and_says_what_is_stored(name, tmp_path, monkeypatch):
    for variable in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):  # The user's own settings stay out.
        monkeypatch.setenv(variable, str(tmp_path / variable))
    path = NOTEBOOKS / f"{name}.ipynb"
    stored, fresh = read(path), executed(path)
    for cell in fresh.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text
    assert pictures(stored) == pictures(fresh)
    for before, now in zip(texts(stored), texts(fresh), strict=True):
        assert [float(n) for n in NUMBER.findall(before)] == pytest.approx(
            [float(n) for n in NUMBER.findall(now)], rel=0.02, abs=0.11), REFRESH


@long
@pytest.mark.parametrize("name", NAMES)
def test_stored_notebook_shows_pictures_and_is_small(name):
    import nbformat

    path = NOTEBOOKS / f"{name}.ipynb"
    notebook = read(path)
    nbformat.validate(notebook)
    assert sum(pictures(notebook)) >= 3
    assert path.stat().st_size < MOST_BYTES
    assert notebook.metadata.kernelspec.name == "python3"
    assert "/tmp/" not in path.read_text()


def test_there_are_just_these_notebooks():
    assert sorted(path.name for path in NOTEBOOKS.iterdir() if path.is_file()) == [
        f"{name}.ipynb" for name in NAMES]


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        store(NOTEBOOKS / f"{chosen}.ipynb")
