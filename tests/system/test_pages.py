"""Pages that show what a command prints show what it prints now; their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import ROOT
from tests.support.levels import long_except

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS = (".", "docs", "docs/*", "bench", "lab", "deploy", "tests", "examples/*")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md"))
SLOW = ("topologies.md", "layouts.md", "ttf.md", "angelptm.md", "embedding.md", "tccl.md",
        "outer.md")
"""Pages with commands that take seconds, or minutes where much is simulated."""
MARKED = [page for page in PAGES if "<!-- output of: " in page.read_text("utf-8")]


@pytest.mark.parametrize("page", long_except(
    MARKED, *(page for page in MARKED if page.name not in SLOW)), ids=lambda page: page.name)
def test_output_is_what_the_command_prints(page: Path) -> None:
    run = subprocess.run([sys.executable, "docs/refresh.py", "--check", str(page)], cwd=ROOT,
                         capture_output=True, text=True, check=False)
    remedy = f"run `python docs/refresh.py {page.relative_to(ROOT)}`"
    assert run.returncode == 0, f"{remedy}\n{run.stdout}{run.stderr}"


def test_a_stale_page_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- output of: python -c 'print(1)' -->\n```\n2\n```\n")
    check = [sys.executable, str(ROOT / "docs/refresh.py"), str(page)]
    stale = subprocess.run([*check, "--check"], capture_output=True, text=True, check=False)
    assert stale.returncode == 1
    assert "+1" in stale.stdout
    subprocess.run(check, check=True)
    assert page.read_text() == "<!-- output of: python -c 'print(1)' -->\n```\n1\n```\n"


@pytest.mark.parametrize(("argument", "status", "sentence"), [
    ("--help", 0, "only compare"), ("/nope.md", 2, "there is no page /nope.md")])
def test_an_argument_that_is_no_page_is_refused(argument: str, status: int, sentence: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs/refresh.py"), argument],
                          capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert sentence in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_front_page_is_short() -> None:
    """Tables belong on the pages that README links to."""
    text = (ROOT / "README.md").read_text("utf-8")
    assert text.count("\n") <= 130
    prose = re.sub(r"<!-- output of:.*?```\n.*?```\n", "", text, flags=re.DOTALL)
    assert not [line for line in prose.splitlines() if len(line) > 120]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    linked = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    missing = [link for link in linked if not (page.parent / link).exists()]
    rooms = "docs|sim|harp|cnet|lab|tests|bench|topologies|notebooks|examples"
    named = re.findall(rf"`((?:{rooms})/[\w./-]+\.\w+)`", text)
    missing += [name for name in named if not (ROOT / name).exists()]
    assert not missing
