"""The bill of materials: right by CycloneDX's schema, and with what the package carries inside."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from harp.html_page.html_elements import FOLDER
from tests.support import ROOT
from tests.support.levels import long

if TYPE_CHECKING:
    from pathlib import Path


def bill(python: str, folder: Path) -> dict[str, Any]:
    subprocess.run([sys.executable, str(ROOT / "deploy" / "sbom.py"), python, "-o",
                    str(folder / "sbom.json")], check=True)
    found: dict[str, Any] = json.loads((folder / "sbom.json").read_text())
    return found


@long
def test_the_bill_names_the_release_and_what_is_inside(tmp_path: Path) -> None:
    """Of an environment without any package."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    found = bill(str(environment / "bin" / "python"), tmp_path)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["component"]["name"] == "harp-stack"
    inside = {one["name"]: one for one in found["components"]}
    assert set(inside) == {"echarts", "zrender"}
    library = (FOLDER / "echarts" / "echarts.min.js").read_bytes()
    assert inside["echarts"]["hashes"][0]["content"] == hashlib.sha256(library).hexdigest()
    page = (FOLDER / "echarts" / "README.md").read_text()
    assert all(f"{name} {one['version']}" in page.lower() for name, one in inside.items())
