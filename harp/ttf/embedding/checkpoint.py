"""Checkpoints of dynamic tables: full ones, and deltas with what changed or went since the last.

    save(model, folder)                  # full: all rows, optimizer's state included
    save(model, folder, delta=True)      # rows that changed since the last save, and ids that went
    load(model, folder)                  # the last full one and the deltas behind it

    follower = Follower(model, folder)   # a server beside the training
    follower.poll()                      # applies what is new, in small parts
    with follower.reading():
        answers = model(ids)

The format, in FOLDER:

    latest.json                          {"format": ..., "files": [[rank files of the full one],
                                          [rank files of a delta], ...], "ids": [...], ...}
    ID.RANK-of-RANKS.safetensors         for each table NAME:
      NAME.keys    I64 [n]               ids of rows that are here
      NAME.rows    F32 [n, dim]          and their rows,
      NAME.state   F32 [n, floats]       optimizer's state (sgd 0, adagrad dim or 1, adam dim means
                                         and dim squares, ftrl dim z and dim n),
      NAME.count, NAME.used, NAME.born   U32 [n]: gradients, the clock at the last and at the first
      NAME.gone    I64 [m]               ids to remove first (deltas)
      about        U8                    JSON: kind, and for each table dim, optimizer, seed, bound,
                                         steps, clock, rows

A file is written beside its place, flushed and renamed, and counts once latest.json, which is
replaced at the end, names it. A process that is killed leaves the last checkpoint whole. Ranks
write a file each; any number of ranks read them all, and each keeps the ids that are its own. Files
of the chain before the last full one stay until the next full one, for readers.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harp.angelptm.cache import StoreError
from harp.module_names import modules_by_name
from harp.reading import FileError, check_format, parse, read_bytes
from harp.tensor_files import (
    CheckpointError,
    read_tensors,
    sync_folder,
    write_bytes,
    write_header,
    write_tensors,
)
from harp.ttf.embedding.modules import DynamicEmbedding
from harp.ttf.embedding.table import DIRTY, HEAD, PART, owners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch import nn

    from harp.tensor_files import Stored, Tensors
    from harp.ttf.embedding.table import Table

FORMAT = "harp.ttf.embedding/1"
OWN_FILE = re.compile(r"[0-9a-f]{16}\.\d+-of-\d+\.safetensors(\.new)?")
"""Parts of other models' checkpoints have a name with -of-, too."""
TIMES = ("count", "used", "born")
SLICE = 4096
"""Rows that a follower writes before readers get their turn."""


def tables_of(model: nn.Module) -> dict[str, DynamicEmbedding]:
    """Name the dynamic tables of a model. ValueError if there is none."""
    found = {name or "table": module for name, module in modules_by_name(model)
             if isinstance(module, DynamicEmbedding)}
    if not found:
        raise ValueError(f"{type(model).__name__} has no dynamic embedding")
    return found


def _about(table: Table) -> dict[str, Any]:
    return {"dim": table.dim, "optimizer": type(table.optimizer).__name__,
            "settings": asdict(table.optimizer), "floats": table.floats - table.dim,
            "seed": table.seed, "bound": table.bound, "steps": table.steps, "clock": table.clock}


def _selected(table: Table, *, delta: bool, values: bool) -> Iterator[tuple[Any, Any]]:
    for heads, floats in table.read(values=values):
        if not delta:
            yield heads, floats
        elif (chosen := heads["changed"] >= DIRTY).any():
            yield heads[chosen], floats[chosen] if values else floats


def _placed(pieces: Iterator[Any]) -> Iterator[tuple[int, Any]]:
    """Give pieces, one after another, with their begins."""
    begin = 0
    for piece in pieces:
        yield begin, piece
        begin += len(piece)


def _pieces(name: str, table: Table, *, delta: bool) -> Tensors:
    """List the tensors of a table, as `write_tensors` takes them."""
    n = sum(len(heads) for heads, _ in _selected(table, delta=delta, values=False))
    dim, state = table.dim, table.floats - table.dim
    gone = np.concatenate([np.empty(0, np.int64), *table.gone]) if delta else np.empty(0, np.int64)

    def column(field: str) -> Callable[[], Iterator[tuple[int, Any]]]:
        return lambda: _placed(heads[field].tobytes() for heads, _ in
                               _selected(table, delta=delta, values=False))

    def floats(begin: int, end: int) -> Callable[[], Iterator[tuple[int, Any]]]:
        return lambda: _placed(values[:, begin:end].tobytes() for _, values in
                               _selected(table, delta=delta, values=True))

    return [(f"{name}.keys", "int64", [n], column("key")),
            (f"{name}.rows", "float32", [n, dim], floats(0, dim)),
            (f"{name}.state", "float32", [n, state], floats(dim, dim + state)),
            *((f"{name}.{field}", "uint32", [n], column(field)) for field in TIMES),
            (f"{name}.gone", "int64", [len(gone)], lambda: [(0, gone.tobytes())])]


def _ranks(model: nn.Module) -> Any:
    """Give the exchange of a model's tables, if they are divided over ranks."""
    return next((module.exchange for module in tables_of(model).values()), None)


def _latest(folder: Path) -> dict[str, Any]:
    """Read latest.json. CheckpointError."""
    path = folder / "latest.json"
    try:
        latest = parse(read_bytes(path))
        check_format(latest, FORMAT)
        ids = [one.text() for one in latest["ids"].each()]
        files = [[one.text() for one in group.each()] for group in latest["files"].each()]
        before = [[one.text() for one in group.each()] for group in latest["before"].each()]
        if not ids or len(ids) != len(files):
            raise FileError(f"it has {len(ids)} ids and {len(files)} lists of files")
    except OSError as error:
        raise CheckpointError(f"{folder} has no checkpoint: latest.json: {error.strerror}"
                              ) from None
    except FileError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return {"format": FORMAT, "ids": ids, "files": files, "before": before}


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    """Have a file written beside its place, and put it there."""
    fresh = path.with_suffix(path.suffix + ".new")
    try:
        write(fresh)
        fresh.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise CheckpointError(f"{path} cannot be saved: {error.strerror}; the last checkpoint "
                              "is as it was") from None


def _write_file(path: Path, tensors: Tensors) -> None:
    write_header(path, tensors)
    write_tensors(path, tensors)


def _next_manifest(folder: Path, tables: dict[str, DynamicEmbedding], files: list[str],
                   number: str, *, delta: bool) -> dict[str, Any]:
    """Put a save behind what a folder has, or in its place. CheckpointError."""
    if not delta:
        before = _latest(folder)["files"] if (folder / "latest.json").exists() else []
        return {"format": FORMAT, "ids": [number], "files": [files], "before": before}
    found = _latest(folder)
    last = found["ids"][-1]
    if any(module.table.saved_as != last for module in tables.values()):
        raise CheckpointError(f"{folder}: the last checkpoint, {last}, is not the one that these "
                              "tables were saved to or loaded from: save a full one")
    return {**found, "ids": [*found["ids"], number], "files": [*found["files"], files]}


def save(model: nn.Module, folder: str | Path, *, delta: bool = False) -> str:
    """Save a model's dynamic tables and return the checkpoint's id.

    CheckpointError, and then the last checkpoint and what counts as changed are as before. With
    tables that are divided over ranks, all ranks call it.
    """
    folder, tables, exchange = Path(folder), tables_of(model), _ranks(model)
    rank, ranks = (exchange.rank, exchange.ranks) if exchange else (0, 1)
    number = uuid.uuid4().hex[:16]
    if exchange:
        number = exchange.agree(number)
    files = [f"{number}.{each}-of-{ranks}.safetensors" for each in range(ranks)]
    manifest: dict[str, Any] = {}

    def write_rank() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        manifest.update(_next_manifest(folder, tables, files, number, delta=delta))
        tensors = _tensors(tables, delta=delta)
        _replace(folder / files[rank], lambda path: _write_file(path, tensors))

    def write_latest() -> None:
        if rank == 0:
            text = json.dumps(manifest).encode()
            _replace(folder / "latest.json", lambda path: write_bytes(path, text))

    for write in (write_rank, write_latest):
        _together(write, f"{folder} cannot be saved to", exchange)
    for module in tables.values():
        module.table.saved()
        module.table.saved_as = number
    if rank == 0 and not delta:
        _sweep(folder, manifest)
    return number


def _tensors(tables: dict[str, DynamicEmbedding], *, delta: bool) -> Tensors:
    about = {"kind": "delta" if delta else "full",
             "tables": {name: _about(module.table) for name, module in tables.items()}}
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 4)
    tensors: Tensors = [("about", "uint8", [len(text)], lambda: [(0, text)])]
    for name, module in tables.items():
        tensors += _pieces(name, module.table, delta=delta)
    return sorted(tensors, key=lambda tensor: tensor[1] != "int64")  # so all of them are aligned


def _together(act: Callable[[], Any], what: str, exchange: Any) -> Any:
    """Act on all ranks, and raise CheckpointError on all of them if it failed on one.

    A rank that has no error of its own names the first rank that has one.
    """
    found, error = None, None
    try:
        found = act()
    except (CheckpointError, StoreError, MemoryError) as failure:
        error = failure
    except OSError as failure:
        error = CheckpointError(f"{what}: {failure.strerror}")
    if exchange and (first := exchange.first_failure(None if error is None else str(error))):
        error = error or CheckpointError(f"rank {first[0]}: {first[1]}")
    if error is not None:
        raise error
    return found


def _sweep(folder: Path, manifest: dict[str, Any]) -> None:
    """Remove files that no chain needs: of killed saves, and of the chain before the last one."""
    kept = {file for group in (*manifest["files"], *manifest["before"]) for file in group}
    for path in folder.glob("*-of-*.safetensors*"):
        if path.name not in kept and OWN_FILE.fullmatch(path.name):
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Part:
    """A file's part of a table: arrays that are mapped and not read."""

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def records(self, mine: Callable[[np.ndarray], np.ndarray], rows: int,
                ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Give heads and values of the rows that are mine, ``rows`` at a time."""
        for at in range(0, len(self.arrays["keys"]), rows):
            cut = slice(at, at + rows)
            keys = np.ascontiguousarray(self.arrays["keys"][cut])
            chosen = mine(keys)
            heads = np.zeros(int(chosen.sum()), dtype=HEAD)
            heads["key"] = keys[chosen]
            for field in TIMES:
                heads[field] = self.arrays[field][cut][chosen]
            yield heads, np.concatenate([self.arrays["rows"][cut][chosen],
                                         self.arrays["state"][cut][chosen]], axis=1)


def _open(path: Path, tables: dict[str, DynamicEmbedding]) -> dict[str, _Part]:
    """Map a file and check it against the tables. CheckpointError."""
    found = read_tensors(path)
    try:
        about = json.loads(bytes(found["about"].data))["tables"]
        parts = {name: _part(found, name, about[name]) for name in about}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{path} is no file of dynamic tables") from None
    for name, module in tables.items():
        if name not in parts:
            raise CheckpointError(f"{path} has no table {name!r}; it has {', '.join(parts)}")
        own, other = _about(module.table), parts[name].about
        for key in ("dim", "optimizer", "floats", "seed", "bound"):
            if own[key] != other[key]:
                raise CheckpointError(f"{path}: table {name!r} has {key} {other[key]}, and the "
                                      f"model's has {own[key]}")
    return parts


def _part(found: dict[str, Stored], name: str, about: dict[str, Any]) -> _Part:
    arrays = {}
    for field, kind, shape in (("keys", np.int64, (-1,)), ("gone", np.int64, (-1,)),
                               ("rows", np.float32, (-1, about["dim"])),
                               *((field, np.uint32, (-1,)) for field in TIMES)):
        arrays[field] = np.frombuffer(found[f"{name}.{field}"].data, kind).reshape(shape)
    n = len(arrays["keys"])
    state = np.frombuffer(found[f"{name}.state"].data, np.float32)
    arrays["state"] = state.reshape(n, about["floats"])
    if any(len(arrays[field]) != n for field in ("rows", *TIMES)):
        raise ValueError(f"the tensors of {name} differ in length")
    return _Part(about, arrays)


def load(model: nn.Module, folder: str | Path) -> str:
    """Make a model's dynamic tables those of the last checkpoint, and return its id.

    New tables are filled, with room on disk for all rows, and then take the place of those that
    are there: CheckpointError, StoreError or MemoryError, and then no table is changed. With tables
    that are divided over ranks, all ranks call it, and all of them raise what one does.
    """
    follower = Follower(model, folder)
    follower.poll()
    return follower.at[-1]


class Follower:
    """A reader that applies what is saved meanwhile, in parts, between its look-ups."""

    def __init__(self, model: nn.Module, folder: str | Path) -> None:
        self._tables, self._folder = tables_of(model), Path(folder)
        self._exchange = _ranks(model)
        self._lock = threading.Lock()
        self.at: list[str] = []
        """Ids of the checkpoints that the tables have."""

    def reading(self) -> AbstractContextManager[bool]:
        """Keep changes away for the time of a look-up, which waits for one part at most."""
        return self._lock

    def poll(self) -> int:
        """Apply what is new, and count the checkpoints. CheckpointError, StoreError, MemoryError.

        A full checkpoint takes the place of what is there as a whole, or nothing is changed. Where
        deltas meet an error of the tables' own disk, some of their rows are there; the next call
        applies these deltas again. Readers go on meanwhile: each row is as it was before or after.
        """
        def together(act: Callable[[], Any]) -> Any:
            return _together(act, f"{self._folder} cannot be read", self._exchange)

        found = together(lambda: _latest(self._folder))
        if self._exchange:  # a save may end between two ranks' looks
            found = json.loads(self._exchange.agree(json.dumps(found)))
        ids: list[str] = found["ids"]
        known = len(self.at) if ids[:len(self.at)] == self.at else 0
        if known == len(ids):
            return 0
        fresh = together(lambda: [[_open(self._folder / name, self._tables) for name in names]
                                  for names in found["files"][known:]])
        if known:  # between readers
            tables = {name: module.table for name, module in self._tables.items()}
            together(lambda: self._change(tables, fresh, SLICE, self._lock))
        else:
            made = together(lambda: self._filled(fresh))
            with self._lock:
                for name, module in self._tables.items():
                    module.table.take(made[name])
        self.at = ids
        for module in self._tables.values():
            module.table.gone = []
            module.table.saved_as = ids[-1]
        return len(fresh)

    def _filled(self, fresh: list[list[dict[str, _Part]]]) -> dict[str, Table]:
        """Make tables that have what checkpoints say."""
        made = {name: module.table.empty_copy() for name, module in self._tables.items()}
        self._change(made, fresh, PART, nullcontext())
        return made

    def _change(self, tables: dict[str, Table], fresh: list[list[dict[str, _Part]]], rows: int,
                lock: AbstractContextManager[Any]) -> None:
        """Change tables by checkpoints, ``rows`` at a time, once there is room for all on disk."""
        for name, table in tables.items():
            self._reserve(table, [part[name] for parts in fresh for part in parts])
        for parts in fresh:
            for name, table in tables.items():
                self._apply(table, [part[name] for part in parts], rows, lock)

    def _reserve(self, table: Table, parts: list[_Part]) -> None:
        """Have room on disk for the rows that come, before any is changed.

        A page has a third of its rows at least (cnet/table/table_cold.h), so a row that many
        deltas have takes three places at most.
        """
        if table.memory_bytes is None:
            return
        keys = np.concatenate([np.empty(0, np.int64),
                               *(part.arrays["keys"] for part in parts)])
        keys = keys[self._mine(keys)]
        table.reserve(min(len(keys), 3 * len(np.unique(keys))))

    def _mine(self, keys: np.ndarray) -> np.ndarray:
        if self._exchange is None:
            return np.ones(len(keys), dtype=bool)
        mine: np.ndarray = owners(keys, self._exchange.ranks) == self._exchange.rank
        return mine

    def _apply(self, table: Table, parts: list[_Part], rows: int,
               lock: AbstractContextManager[Any]) -> None:
        for part in parts:
            keys = part.arrays["gone"]
            for at in range(0, len(keys), SLICE):
                with lock:
                    table.remove(keys[at:at + SLICE])
        for part in parts:
            for heads, values in part.records(self._mine, rows):
                with lock:
                    table.write(heads, values)
        with lock:
            table.steps, table.clock = parts[0].about["steps"], parts[0].about["clock"]
