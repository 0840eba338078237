"""Hook of MkDocs that makes the site: which files are pages, the menu, and the pages of the API.

The tree itself is the site's: every page under version control is one at its own path, as is each
file that a page links to, so that one link serves readers of the site, of a forge and of a
checkout. The menu is the index of ``docs/README.md``, section by section. Each package of ``harp``
and ``sim`` has a page made of its docstrings, by mkdocstrings. ``make docs`` builds, strictly.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).resolve().parent.parent
API = "docs/api"
"""Folder of the pages that are made of docstrings."""
PACKAGES = ("harp", "sim")
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
_SECTION = re.compile(r"^## (.+)$|^\| \[[^]]*\]\(([^)#]+)\) \|", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the menu from the index of the manual, and put the API behind it."""
    menu: list[dict[str, object]] = [{"HARP": ["README.md", {"The manual": "docs/README.md"}]}]
    pages: list[str] | None = None  # the table before the first section has what sections have
    for title, page in _SECTION.findall((ROOT / "docs/README.md").read_text("utf-8")):
        if title:
            pages = []
            menu.append({title: pages})
        elif pages is not None:
            pages.append(f"docs/{page}")
    menu.append({"API": [{name: f"{API}/{name}.md"} for name in packages()]})
    menu.append({"Project": ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]})
    config.nav = menu
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the tree's pages, what they link to, and the API's pages in place of ``docs/`` alone."""
    theme = [file for file in files if config.docs_dir not in (file.abs_src_path or "")]
    site = Files(theme)
    for path in sorted(_pages() | _linked(_pages())):
        site.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for name in packages():
        site.append(File.generated(config, f"{API}/{name}.md", content=_api_page(name)))
    return site


def packages() -> list[str]:
    """Dotted names of the packages that have a page, in the order of their folders."""
    modules = _tracked(*(f"{name}/**/*.py" for name in PACKAGES))
    folders = {posixpath.dirname(path) for path in modules}
    return sorted(folder.replace("/", ".") for folder in folders
                  if (ROOT / folder / "__init__.py").exists())


def _api_page(package: str) -> str:
    """A page with the package's docstring and those of its modules, one after the other."""
    folder = ROOT / package.replace(".", "/")
    modules = [package, *(f"{package}.{path.stem}" for path in sorted(folder.glob("[!_]*.py")))]
    return f"# {package}\n\n" + "\n".join(f"::: {module}\n" for module in modules)


def _tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "--", *(f":(glob){p}" for p in patterns)], cwd=ROOT,
                            capture_output=True, text=True, check=True)
    return listed.stdout.split()


def _pages() -> set[str]:
    return {path for path in _tracked("**/*.md")
            if not path.startswith((".github/", "tests/data/"))}


def _linked(pages: set[str]) -> set[str]:
    """Files, other than pages, that pages link to: pictures, topologies, notebooks."""
    links = {posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
             for page in pages for link in _LINK.findall((ROOT / page).read_text("utf-8"))}
    return {link for link in links - pages if (ROOT / link).is_file()}
