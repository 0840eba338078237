"""The rooms of the simulator: who may import whom."""

import ast

import pytest

from tests.support import ROOT

PACKAGES = ("harp", "lab", "sim", "bench", "tests")
"""From the ground up: a package imports itself and those before it."""
SIM = ROOT / "sim"
ROOMS = ("workloads", "schema", "stacks", "frameworks", "records", "cluster", "formats", "network",
         "step", "traces", "answer", "report", "sweeps", "validation", "calibration")
"""From the ground up: a room imports itself and those before it. Commands stand above them all."""
COMMANDS = {"run", "compare", "convert", "sweep", "trace", "tune", "calibrate", "validate",
            "command"}
FIDELITIES = ("flow", "packet", "lab")
"""Rooms inside `network` that know nothing of one another."""


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def room_of(module):
    return module.split(".")[1]



def test_every_folder_is_a_room_and_every_loose_file_a_command():
    folders = {path.relative_to(SIM).parts[0] for kind in ("py", "yaml")
               for path in SIM.rglob(f"*/*.{kind}")}
    assert folders == set(ROOMS)
    assert {path.stem for path in SIM.glob("*.py")} == COMMANDS | {"__init__"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_no_room_above_it(room):
    above = set(ROOMS[ROOMS.index(room) + 1:]) | COMMANDS
    upward = [f"{path.relative_to(SIM)} imports {module}" for path in (SIM / room).rglob("*.py")
              for module in imported_modules(path)
              if module.startswith("sim.") and room_of(module) in above]
    assert not upward


@pytest.mark.parametrize("room", ROOMS)
def test_no_other_room_imports_a_fidelity(room):
    inside = tuple(f"sim.network.{fidelity}." for fidelity in FIDELITIES)
    past_the_seam = [f"{path.relative_to(SIM)} imports {module}"
                     for path in (SIM / room).rglob("*.py") if room != "network"
                     for module in imported_modules(path) if module.startswith(inside)]
    assert not past_the_seam


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_fidelities_do_not_import_one_another(fidelity):
    others = tuple(f"sim.network.{other}." for other in FIDELITIES if other != fidelity)
    crossing = [f"{path.name} imports {module}"
                for path in (SIM / "network" / fidelity).rglob("*.py")
                for module in imported_modules(path) if module.startswith(others)]
    assert not crossing


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_no_package_above_it(package):
    above = set(PACKAGES[PACKAGES.index(package) + 1:])
    upward = [f"{path.relative_to(ROOT)} imports {module}"
              for path in (ROOT / package).rglob("*.py") for module in imported_modules(path)
              if module.split(".")[0] in above
              and not (module.startswith("sim.") and ROOT / "harp" / "cli" in path.parents)]
    assert not upward
