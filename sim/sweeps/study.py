"""One point of a sweep: run it, and name it by a hash of all that its answer depends on.

A `Study` is what all points share. It holds the topology file's bytes rather than its path, so that
a worker on another machine needs no file. A point that the simulator refuses (a fabric too small
for its hosts, say) is an answer as well: an `Outcome` without rows and with the sentence.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.schema.input_errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sim.schema.source import Source
    from sim.schema.topology_model import Topology

COMPILED = ("sim.network.flow._fluid", "sim.network.packet._packet")
"""Compiled parts that decide answers."""
FORMAT = 1
"""Version of what a stored outcome holds."""


@dataclass(frozen=True)
class Study:
    """The topology file and how its points run."""

    file: str
    """Name of the topology file, for errors."""
    data: bytes
    scenarios: tuple[str, ...] = ()
    """Names of those to run; all where empty."""
    fidelity: str = "flow"
    draws: int = 0
    named: tuple[tuple[str, str], ...] = ()
    """Path and hash of each file that a worker elsewhere must have as well."""

    def anywhere(self, points: Iterable[Sequence[str]], *, elsewhere: bool) -> Study:
        """The same for processes that run in any folder, of other machines where ``elsewhere``."""
        named = {file for changes in points for file in self._named(tuple(changes))
                 } if elsewhere else ()
        return replace(self, file=str(Path(self.file).absolute()), named=tuple(sorted(named)))

    def load(self, changes: Sequence[str]) -> Topology:
        """The topology of a point; raises TopologyError."""
        from sim.schema.load import checked

        return checked(_source(self.data, self.file).changed(changes))

    def check_form(self, changes: Sequence[str]) -> None:
        """Raise TopologyError where the topology file cannot have a key or value of a point."""
        from sim.schema.load import well_formed

        well_formed(_source(self.data, self.file).changed(changes))

    def key(self, changes: Sequence[str]) -> str:
        """Hash of file, overrides, seed (in one of the two), way of running and code.

        Files that a value names, from the topology file's folder on, count with their content; so
        do execution traces by their common name.
        """
        files = [[Path(path).name, digest] for path, digest in self._named(tuple(changes))]
        named = [FORMAT, code_digest(), hashlib.sha256(self.data).hexdigest(), files,
                 list(self.scenarios), self.fidelity, self.draws, list(changes)]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()

    def _named(self, changes: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        return _named_files(self.data, self.file, Path(self.file).parent.absolute(), changes)


class OtherFilesError(RuntimeError):
    """A worker's files are not those of the machine that runs the sweep."""


@dataclass(frozen=True)
class Outcome:
    """Answer of one point: a list of cells under `sim.report.export.HEADER` a row, or an error."""

    key: str
    changes: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...] = ()
    error: str | None = None


def run_point(study: Study, point: tuple[str, tuple[str, ...]]) -> Outcome:
    """Simulate one point, given by its key and changes."""
    from sim.answer.answer import answer
    from sim.cluster.cluster import Cluster
    from sim.network.interface import NetworkError
    from sim.report.export import row_cells

    key, changes = point
    _check_files(study.named)
    try:
        topology = study.load(changes)
        chosen = [scenario for scenario in topology.scenarios
                  if not study.scenarios or scenario.name in study.scenarios]
        report = answer(Cluster(topology), chosen, draws=study.draws, fidelity=study.fidelity)
    except (TopologyError, NetworkError) as error:
        return Outcome(key, changes, error=str(error))
    return Outcome(key, changes, tuple(row_cells(row) for row in report.scenarios))


@cache
def _source(data: bytes, file: str) -> Source:
    """The topology file, read once for all points."""
    from sim.schema.source import Source

    return Source.parse(data, file)


def _texts(value: Any) -> Iterator[str]:
    """All texts in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for child in value.values():
            yield from _texts(child)
    elif isinstance(value, list):
        for child in value:
            yield from _texts(child)


@cache
def _named_files(data: bytes, file: str, folder: Path,
                 changes: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Path and hash of each file that a value names: one, or execution traces."""
    texts = sorted(set(_texts(_source(data, file).changed(changes).root.plain())))
    return tuple((str(path), _file_digest(path))
                 for text in texts for path in _paths(folder, text))


@cache
def _check_files(named: tuple[tuple[str, str], ...]) -> None:
    """Raise OtherFilesError where this machine lacks a file, or has another of its name."""
    for path, digest in named:
        if not Path(path).is_file() or _sha256_of(Path(path)) != digest:
            raise OtherFilesError(f"a worker lacks {path}, or has another file of that name; files "
                                  "that the topology names lie at the same path on all machines")


@cache
def _paths(folder: Path, text: str) -> list[Path]:
    path = folder / text
    try:
        if path.is_file():
            return [path]
        return sorted(one for one in path.parent.glob("*.et")
                      if one.name.startswith(f"{path.name}."))
    except (OSError, ValueError):  # a long or odd text is no name of a file
        return []


def _sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


_file_digest = cache(_sha256_of)


@cache
def code_digest() -> str:
    """Hash of the simulator: its version, modules, parameter sets and compiled parts."""
    digest = hashlib.sha256(source_digest().encode())
    for module in COMPILED:
        spec = find_spec(module)
        assert spec is not None
        digest.update(Path(str(spec.origin)).read_bytes())
    return digest.hexdigest()


@cache
def source_digest() -> str:
    """The same without the compiled parts, which may differ between machines of one version."""
    digest = hashlib.sha256(metadata.version("harp-stack").encode())
    for package in ("harp", "sim"):
        for name, content in _files(Path(str(resources.files(package)))):
            digest.update(f"{package}/{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _files(folder: Path) -> Iterable[tuple[str, bytes]]:
    found = [path for path in folder.rglob("*") if path.suffix in (".py", ".yaml")]
    for path in sorted(found, key=lambda one: one.relative_to(folder).as_posix()):
        yield path.relative_to(folder).as_posix(), path.read_bytes()
