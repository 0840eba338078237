"""The manual as a site: it builds without a warning, holds what it should, and loads nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import ROOT
from tests.support.levels import long

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = built(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def built(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-f", str(config), "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})


@long
def test_every_page_of_the_manual_is_in_the_menu(site: Path) -> None:
    front = (site / "docs" / "index.html").read_text("utf-8")
    pages = sorted((ROOT / "docs").glob("*/*.md"))
    missing = [page.name for page in pages
               if f'href="{page.relative_to(ROOT / "docs").with_suffix(".html")}"' not in front]
    assert len(pages) > 30
    assert not missing


@long
def test_pages_of_the_api_show_docstrings(site: Path) -> None:
    text = (site / "docs" / "api" / "harp.net.html").read_text("utf-8")
    assert "harp.net.engine.Engine" in text
    first = (ROOT / "harp" / "net" / "engine.py").read_text("utf-8").split('"""')[1].split("\n")[0]
    assert re.sub(r"[`'.]", "", first)[:30] in re.sub(r"<[^>]+>|[`'.]", "", text)


@long
def test_examples_of_docstrings_are_code(site: Path) -> None:
    text = (site / "docs" / "api" / "sim.schema.html").read_text("utf-8")
    assert '<span class="gp">&gt;&gt;&gt; </span>' in text


@long
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r'<(?:script|img|iframe|link)[^>]+(?:src|href)="?https?://[^" >]+')
    foreign = {found for page in site.rglob("*.html")
               for found in loads.findall(page.read_text("utf-8")) if "canonical" not in found}
    assert not foreign


@long
def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Page\n\n[nowhere](nowhere.md)\n")
    settings = (ROOT / "mkdocs.yml").read_text("utf-8").split("plugins:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings.replace("hooks: [docs/site.py]\n", ""))
    done = built(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    assert "nowhere.md" in done.stdout + done.stderr
