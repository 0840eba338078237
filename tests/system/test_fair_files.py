"""No shipped file gives stacks different means, unless the name of a row says so."""

from __future__ import annotations

import re

import pytest

from sim.schema import load
from sim.schema.parameters import load_stack
from tests.support import ROOT

FOLDER = ROOT / "topologies"
FILES = sorted(FOLDER.glob("*.yaml"))
NAMES_OF_MEANS = {"channels": r"\bchannels?\b", "helpers": r"\b(helpers?|sockets?)\b",
                  "sockets": r"\b(sockets?|helpers?|QPs?|paths?)\b"}
"""Keys that give a row more or fewer means, and what its name then says."""
ALL_CORES = re.compile(r"kernel TCP|RDMA")
"""Rows beside Tencent's fits that have all cores of a host: stacks that are not Tencent's."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_have_nccls_channels_and_sockets_unless_their_name_says_how_many(path):
    for scenario in load(path).scenarios:
        for key, word in NAMES_OF_MEANS.items():
            if scenario.model_fields_set & {key} and getattr(scenario, key) != "auto":
                assert re.search(word, scenario.name), (scenario.name, key)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stacks_have_the_same_cores_and_threads_unless_their_name_says_which(path):
    topology = load(path)
    stacks = {scenario.name: load_stack(scenario.stack, topology.stacks)
              for scenario in topology.scenarios}
    assert len({stack.threads.value for stack in stacks.values()}) == 1
    cores = {name: stack.cores and stack.cores.value for name, stack in stacks.items()}
    if set(cores.values()) == {None}:
        return
    for name, own in cores.items():
        assert (own == 8) == name.endswith(" x8"), name
        assert (own is None) == (ALL_CORES.search(name) is not None), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_tencents_files_use_what_was_fitted_to_its_table(path):
    topology = load(path)
    fitted = [scenario.name for scenario in topology.scenarios
              if scenario.stack.startswith("taco-")]
    assert bool(fitted) == path.stem.startswith("taco-"), fitted
