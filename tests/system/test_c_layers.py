"""Calls inside cnet point one way: between its folders, and between the files of one thing."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path

import networkx
import pytest

from lab.c_programs import STRICT, library
from tests.support import ROOT

CNET = ROOT / "cnet"
# A folder of cnet, and whose functions it may call beside its own.
MAY_CALL: dict[str, set[str]] = {
    "base": set(),
    "wire": {"base"},
    "cc": {"base"},
    "session": {"base", "wire", "cc"},
    "virtual": {"base", "wire", "cc", "session"},
    "ports": {"base", "wire"},
    "engine": {"base", "wire", "cc", "session", "ports"},
    "lightcc": {"engine", "ports"},
    "store": {"base"},
    "table": {"store"},
}


def listed(header: str) -> list[str]:
    """Names of files without their ending, from the top of a header's list to its end."""
    return re.findall(r"^ \*   (\w+)\.c  ", (CNET / header).read_text(), re.M)


def symbols(*objects: Path) -> tuple[dict[str, str], dict[str, set[str]]]:
    """The definer of each global function or variable, and each file's uses of others."""
    defined: dict[str, str] = {}
    used: dict[str, set[str]] = {}
    nm = shutil.which("nm")
    assert nm, "nm comes with the compiler's binutils"
    done = subprocess.run([nm, "-A", *map(str, objects or [library()])], capture_output=True,
                          text=True, check=True)
    for line in done.stdout.splitlines():
        place, kind, name = re.sub(r":[0-9a-f]* +", " ", line).rsplit(maxsplit=2)
        file = Path(place.split(":")[-1]).stem
        if kind == "U":
            used.setdefault(file, set()).add(name)
        elif kind.isupper():
            defined[name] = file
    return defined, used


def test_folders_call_only_those_above_them() -> None:
    folder = {path.stem: path.parent.name for path in CNET.glob("*/*.c")
              if path.parent.name != "nccl"}
    assert set(folder.values()) == set(MAY_CALL)
    defined, used = symbols()
    calls = {(file, defined[name], name) for file in folder for name in used.get(file, ())
             if name in defined and folder[defined[name]] != folder[file]}
    assert len(calls) > 100
    wrong = sorted(call for call in calls if folder[call[1]] not in MAY_CALL[folder[call[0]]])
    assert not wrong, wrong


@pytest.mark.parametrize(("header", "files", "others"), [
    ("engine/engine_state.h", "engine/*.c", {"connection_table", "perf", "perf_tcp", "schedule",
                                                 "stats"}),
    ("cc/swift.h", "cc/swift*.c", set()),
    ("session/session_state.h", "session/session*.c", set()),
    ("ports/port_tcp.h", "ports/port_tcp*.c", set()),
    ("ports/xdp_port.h", "ports/*xdp*.c", set()),
])
def test_every_file_is_listed(header: str, files: str, others: set[str]) -> None:
    assert set(listed(header)) | others == {path.stem for path in CNET.glob(files)}


@pytest.mark.parametrize("header", ["engine/engine_state.h", "cc/swift.h",
                                    "session/session_state.h", "ports/port_tcp.h",
                                    "ports/xdp_port.h"])
def test_calls_between_files_point_down_the_list(header: str) -> None:
    place = {name: at for at, name in enumerate(listed(header))}
    defined, used = symbols()
    calls = {(file, defined[name], name) for file in place for name in used.get(file, ())
             if defined.get(name) in place}
    assert len(calls) > 10
    upward = sorted(call for call in calls if place[call[1]] < place[call[0]])
    assert not upward, upward


def compiled(sources: list[Path], folder: Path) -> list[Path]:
    """The sources, each as an object file."""
    objects = [folder / f"{source.stem}.o" for source in sources]
    for source, made in zip(sources, objects, strict=True):
        subprocess.run(["cc", *STRICT, "-c", str(source), "-o", str(made)], check=True)
    return objects


FOLDERS = sorted({str(path.parent.relative_to(ROOT)) for top in ("cnet", "harp", "sim")
                  for path in (ROOT / top).rglob("*.c") if len(list(path.parent.glob("*.c"))) > 1})
assert {"cnet/session", "cnet/virtual", "sim/network/flow", "sim/network/packet"} < set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_of_a_folder_call_one_another_in_no_circle(folder: str, tmp_path: Path) -> None:
    sources = sorted((ROOT / folder).glob("*.c"))
    files = {source.stem for source in sources}
    in_library = Path(folder).name in MAY_CALL and folder.startswith("cnet/")
    defined, used = symbols() if in_library else symbols(*compiled(sources, tmp_path))
    assert files <= used.keys() | set(defined.values())
    calls = networkx.DiGraph((file, defined[name]) for file in files for name in used.get(file, ())
                             if defined.get(name, file) in files - {file})
    circles = [sorted(files) for files in networkx.strongly_connected_components(calls)
               if len(files) > 1]
    assert not circles, circles


@pytest.mark.parametrize("module", ["harp._cnet", "sim.network.packet._packet"])
def test_modules_keep_the_names_of_cnet_to_themselves(module: str) -> None:
    file = importlib.import_module(module).__file__
    symbols = subprocess.run(["objdump", "-T", str(file)], capture_output=True, text=True,
                             check=True).stdout
    exported = re.findall(r"\.text\s.*\s(\S+)$", symbols, re.MULTILINE)
    assert exported == [f"PyInit_{module.rpartition('.')[2]}"]
