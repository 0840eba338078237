"""The rooms of harp and of the simulator: imports point one way, between rooms and modules."""

import ast
from pathlib import Path

import networkx
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
HARP_ROOMS = ("collectives", "routing", "net", "lightcc", "angelptm", "ttf", "cli")
"""The same of `harp`, with its loose files below, but for two that use rooms."""
ABOVE_ROOMS = {"__init__", "run_page"}
TWICE = {"few_bits.py": [Path("harp/lightcc/few_bits.py"), Path("harp/lightcc/torch/few_bits.py")]}
"""Users import both: what numpy's arrays call, and DDP's hook of the same name."""
FIDELITIES = ("flow", "packet", "lab")
"""Rooms inside `network` that know nothing of one another."""


def imported_modules(path):
    return imports_of(ast.parse(path.read_text("utf-8")), path)


def imports_of(tree, path):
    for node in ast.walk(tree):
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


def test_the_name_of_a_file_occurs_once():
    """A search by name finds one file, and the editor's tabs differ."""
    by_name: dict[str, list[Path]] = {}
    for folder in ("cnet", "harp", "sim"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in {".c", ".h", ".py"} and not path.stem.startswith("__"):
                by_name.setdefault(path.name, []).append(path.relative_to(ROOT))
    assert len(by_name) > 500
    assert {name: sorted(paths) for name, paths in by_name.items() if len(paths) > 1} == TWICE


@pytest.mark.parametrize("package", ["cnet", "harp", "sim"])
def test_each_module_has_its_test_by_name(package):
    """Files whose names begin with their object's have its test: engine_send.c has test_engine."""
    modules = [path.relative_to(ROOT) for path in (ROOT / package).rglob("*.*")
               if path.suffix in {".c", ".py"} and not path.stem.startswith("__")]
    assert len(modules) > 90
    assert not [str(path) for path in modules if not has_test(path)]


def has_test(module):
    words = module.stem.split("_")
    objects = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
    tests = [path.stem.removeprefix("test_")
             for path in (ROOT / "tests" / module.parent).glob("test_*")]
    return any(test == name or test.startswith(f"{name}_") for test in tests for name in objects)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_no_package_above_it(package):
    above = set(PACKAGES[PACKAGES.index(package) + 1:])
    upward = [f"{path.relative_to(ROOT)} imports {module}"
              for path in (ROOT / package).rglob("*.py") for module in imported_modules(path)
              if module.split(".")[0] in above
              and not (module.startswith("sim.") and ROOT / "harp" / "cli" in path.parents)]
    assert not upward


def modules_imported_when_run(path):
    """The same without what is imported for type checkers only."""
    class Stripped(ast.NodeTransformer):
        def visit_If(self, node):
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                return None
            return self.generic_visit(node)

    return imports_of(Stripped().visit(ast.parse(path.read_text("utf-8"))), path)


@pytest.mark.parametrize("room", HARP_ROOMS)
def test_a_room_of_harp_imports_no_room_above_it(room):
    """A package's `__main__` is a command, and commands stand above all rooms."""
    above = {f"harp.{other}" for other in HARP_ROOMS[HARP_ROOMS.index(room) + 1:]}
    upward = [f"{path.relative_to(ROOT)} imports {module}"
              for path in (ROOT / "harp" / room).rglob("*.py") if path.stem != "__main__"
              for module in imported_modules(path) if ".".join(module.split(".")[:2]) in above]
    assert not upward


def test_loose_files_of_harp_import_no_room():
    rooms = {f"harp.{room}" for room in HARP_ROOMS}
    upward = [f"{path.name} imports {module}" for path in (ROOT / "harp").glob("*.py")
              if path.stem not in ABOVE_ROOMS for module in imported_modules(path)
              if ".".join(module.split(".")[:2]) in rooms]
    assert not upward


@pytest.mark.parametrize("package", PACKAGES[:-1])
def test_modules_import_one_another_in_no_circle(package):
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
             for path in (ROOT / package).rglob("*.py")}
    calls = networkx.DiGraph()
    for module, path in paths.items():
        for name in modules_imported_when_run(path):
            used = name if name in paths else name.rpartition(".")[0]
            if used in paths and used != module:
                calls.add_edge(module, used)
    assert len(calls) > 5
    circles = [sorted(modules) for modules in networkx.strongly_connected_components(calls)
               if len(modules) > 1]
    assert not circles
