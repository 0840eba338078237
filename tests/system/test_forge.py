"""Files for a public forge: workflows are right by their schema, and call targets that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support import ROOT
from tests.support.levels import long

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@long
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_one_by_its_schema(path):
    done = subprocess.run([sys.executable, "-m", "check_jsonschema", "--builtin-schema",
                           "vendor.github-workflows", str(path)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def called_targets(path: Path) -> set[str]:
    """Targets of `make` that the jobs of a workflow call."""
    called: set[str] = set()
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        called |= {target.split()[0] for target in
                   job.get("strategy", {}).get("matrix", {}).get("target", [])}
        for step in job["steps"]:
            called |= set(re.findall(r"^make ([a-z-]+)", step.get("run", ""), re.MULTILINE))
    return called


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_of_the_makefile(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set() < called_targets(path) <= targets


def test_a_commit_is_built_checked_and_documented_by_the_makefile():
    assert called_targets(ROOT / ".github" / "workflows" / "ci.yml") == {
        "lint", "docs", "test-all", "test-torch", "fuzz", "wheels"}


def test_the_steps_of_ci_are_in_the_workflows():
    asked = set(re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
    text = "".join(path.read_text() for path in WORKFLOWS)
    assert asked - {"setup"} == {name for name in asked if re.search(rf"\b{name}\b", text)} - {
        "setup"}


@pytest.mark.parametrize("name", ["wrong.md", "prediction.md"])
def test_an_issue_template_has_a_name_and_says_what_it_is_for(name):
    head = (ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text().split("---")[1]
    assert set(yaml.safe_load(head)) == {"name", "about"}
