"""Run the commands that stand beside blocks of output in a page, and put their output in.

A block is marked by a comment that holds its command::

    <!-- output of: python -m sim.run topologies/taco-vgg16-v100-25g.yaml -->
    ```
    ...
    ```

The command is a script for bash: it may hold pipes, and several lines. ``python docs/refresh.py
README.md`` writes the blocks anew. With ``--check`` it only compares, and ends with status 1 where
a block is stale. Commands run in the repository's root.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = "120"
"""Width of the tables in a page, whatever the terminal's."""
REFUSED = 2
"""Exit status of a command that was given a wrong file; what it says then belongs in a manual."""
_BLOCK = re.compile(
    r"<!-- output of:\s(?P<command>[^<]*?)\s-->\n```\w*\n(?P<text>.*?)```\n", re.DOTALL)


def output(command: str) -> str:
    """Return a page's command's output; RuntimeError unless it ends well or refuses its input."""
    first = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "COLUMNS": COLUMNS, "PATH": first}
    run = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=ROOT, env=environment,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if run.returncode not in (0, REFUSED):
        raise RuntimeError(f"{command} ended with status {run.returncode}: {run.stdout}")
    return run.stdout


def refresh(text: str) -> str:
    """Return a page with the output of every marked block made anew."""

    def block(match: re.Match[str]) -> str:
        marker = match[0].partition("```")[0]
        return f"{marker}```\n{output(match['command'])}```\n"

    return _BLOCK.sub(block, text)


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    """Take the command line apart; what is wrong with it ends the process with status 2."""
    parser = argparse.ArgumentParser(description="Run the commands of pages, and put their output "
                                                 "in.")
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument("--check", action="store_true",
                        help="only compare; status 1 where a block is stale")
    found = parser.parse_args(arguments)
    for page in found.pages:
        if not page.is_file():
            parser.error(f"there is no page {page}")
    return found


def main(arguments: list[str]) -> int:
    """Refresh, or check, the pages named."""
    asked = read_arguments(arguments)
    stale = False
    for page in asked.pages:
        old = page.read_text("utf-8")
        new = refresh(old)
        if new == old:
            continue
        stale = True
        if asked.check:
            sys.stdout.writelines(difflib.unified_diff(
                old.splitlines(keepends=True), new.splitlines(keepends=True), str(page),
                "as it is now"))
        else:
            page.write_text(new, "utf-8")
    return int(asked.check and stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
