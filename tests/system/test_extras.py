"""Every extra that pages and messages name is one that pip knows: it warns of no other."""

from __future__ import annotations

import re
from importlib import metadata

from tests.support import ROOT

NAMED = re.compile(r"(?:harp-stack|'\.)\[([a-z, ]+)\]")


def named_extras() -> dict[str, str]:
    """Extras that a page or a message tells the user to install, and a file that does so."""
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "harp").rglob("*.py"),
             *(ROOT / "sim").rglob("*.py")]
    return {name.strip(): str(file.relative_to(ROOT)) for file in files
            for listed in NAMED.findall(file.read_text()) for name in listed.split(",")}


def test_every_extra_that_a_page_names_is_declared() -> None:
    named = named_extras()
    assert {"torch", "sweep", "tune", "infer", "report", "chakra"} <= set(named)
    known = metadata.metadata("harp-stack").get_all("Provides-Extra") or []
    assert {name: file for name, file in named.items() if name not in known} == {}
