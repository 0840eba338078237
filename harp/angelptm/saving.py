"""Checkpoints of a model in pages: which tensors they have, and where each of them lies.

`harp.angelptm.checkpoint_files` knows the files. All ranks write and read at once, each its own
parts.
"""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any

import torch

from harp.angelptm import checkpoint_files
from harp.angelptm.checkpoint_files import MODEL, OPTIMIZER, SCHEDULER, STATE
from harp.angelptm.ranks import RankError, alike
from harp.first_line import first_line
from harp.tensor_files import (
    CheckpointError,
    read_tensors,
    write_bytes,
    write_header,
    write_tensors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from harp.angelptm.ranks import Ranks
    from harp.angelptm.state_bytes import States
    from harp.tensor_files import Stored

log = logging.getLogger("harp.angelptm")


class Saving:
    """Saves and loads, between two steps."""

    def __init__(self, module: torch.nn.Module, parameters: Sequence[torch.nn.Parameter],
                 states: States, ranks: Ranks | None) -> None:
        self._module, self._parameters = module, parameters
        self._states, self._ranks = states, ranks
        self._number = {id(one): number for number, one in enumerate(parameters)}
        self._persistent = set(module.state_dict())

    def save(self, folder: Path, tag: str, kept: Mapping[str, Any], scheduler: Any) -> None:
        """Save all tensors, a scheduler if there is one, and what JSON can hold beside them.

        Raises CheckpointError, and then the last checkpoint is as it was.
        """
        try:
            self._write(folder, tag, kept, scheduler)
        except (OSError, RankError):
            if self._is_first:
                checkpoint_files.give_up(folder, tag)  # or it keeps a disk full
            raise

    def _write(self, folder: Path, tag: str, kept: Mapping[str, Any], scheduler: Any) -> None:
        fresh = checkpoint_files.fresh_folder(folder, tag)
        files = {MODEL: self._model_tensors(),
                 OPTIMIZER: [self._tensor(f"{name}.{kind}", number, place)
                                           for number, name in enumerate(self.names())
                                           for place, kind in ((1, "mean"), (2, "square"))]}
        with alike(self._ranks), checkpoint_files.writing(fresh):
            text, schedule = _as_json(kept), _as_bytes(scheduler)
            if self._is_first:
                checkpoint_files.begin(folder, tag)
                for name, tensors in files.items():
                    write_header(fresh / name, tensors)
        with alike(self._ranks), checkpoint_files.writing(fresh):
            for name, tensors in files.items():
                write_tensors(fresh / name, tensors)
        with alike(self._ranks), checkpoint_files.writing(fresh):
            if self._is_first:
                if schedule:
                    write_bytes(fresh / SCHEDULER, schedule)
                write_bytes(fresh / STATE, text)
                checkpoint_files.publish(folder, tag)

    def save_whole(self, folder: Path, name: str) -> None:
        """Save the state_dict as a file of torch, by the first rank. Raises CheckpointError."""
        states = self._module.state_dict()
        with alike(self._ranks), checkpoint_files.writing(folder / name):
            if self._is_first:
                folder.mkdir(parents=True, exist_ok=True)
                fresh = folder / f"{name}.new"
                with fresh.open("wb") as file:
                    torch.save(states, file)
                fresh.replace(folder / name)

    def load(self, load_dir: Path, tag: str | None, groups: int | None, scheduler: Any, *,
             strict: bool, own: Callable[[dict[str, torch.Tensor]], None] | None,
             ) -> tuple[Path, dict[str, Any]]:
        """Load all tensors, and a scheduler; returns the folder, and what was kept beside them.

        ``groups`` are those of the optimizer; if None, its moments stay as they are. Tensors that
        the checkpoint has not are as before unless it is ``strict``. A function of the script's
        ``own`` is given the model's tensors in place of the model.
        Raises CheckpointError, and then nothing was changed.
        """
        with alike(self._ranks):
            folder = checkpoint_files.find(load_dir, tag)
            model, states, kept = self._read(folder, groups, strict=strict, own=own is not None)
            schedule = _read_scheduler(folder / SCHEDULER) if scheduler is not None else None
        with alike(self._ranks):
            for number, name in enumerate(self.names()):
                stored = {} if own else {0: model.get(name)}
                stored |= {1: states.get(f"{name}.mean"), 2: states.get(f"{name}.square")}
                self._states.restore(number, {kind: one.data for kind, one in stored.items()
                                              if one is not None})
            if self._ranks:
                self._states.forget()
        for name, tensor in self._unpaged().items() if own is None else ():
            if name in model:
                tensor.copy_(model[name].tensor())
        if own is not None:
            own({name: one.tensor() for name, one in model.items()})
        if schedule is not None:
            scheduler.load_state_dict(schedule)
        return folder, kept

    def _read(self, folder: Path, groups: int | None, *, strict: bool, own: bool,
              ) -> tuple[dict[str, Stored], dict[str, Stored], Any]:
        """Give the tensors of a checkpoint, which fit to those of this model by the same names."""
        model = read_tensors(folder / MODEL)
        states = {} if groups is None else read_tensors(folder / OPTIMIZER)
        names = [name for name in self.names() if strict or name in model]
        kept = checkpoint_files.read_state(folder / STATE, names, groups)
        shapes = dict(zip(self.names(), (one.shape for one in self._parameters), strict=True))
        for name in names:
            if not own:
                _check_form(folder, name, model.get(name), shapes[name], "float32")
            for moment in () if groups is None else (f"{name}.mean", f"{name}.square"):
                _check_form(folder, moment, states.get(moment), shapes[name], "float32")
        for name, one in self._unpaged().items() if not own else ():
            if strict or name in model:
                _check_form(folder, name, model.get(name), one.shape,
                            str(one.dtype).removeprefix("torch."))
        return model, states, kept

    @property
    def _is_first(self) -> bool:
        return self._ranks is None or self._ranks.rank == 0

    def names(self) -> list[str]:
        """The first name of each parameter in pages."""
        names = {id(one): name for name, one in self._module.named_parameters()}
        return [names[id(one)] for one in self._parameters]

    def _unpaged(self) -> dict[str, torch.Tensor]:
        """Tensors of the model that are not in pages: buffers, and what is not trained."""
        own = {name: one.data
               for name, one in self._module.named_parameters(remove_duplicate=False)
               if id(one) not in self._number}
        own |= {name: one for name, one in self._module.named_buffers(remove_duplicate=False)
                if name in self._persistent}
        return {name: one for name, one in own.items() if one.numel()}

    def _model_tensors(self) -> list[Any]:
        """All of the state_dict; tied weights by each of their names."""
        tensors = [self._tensor(name, self._number[id(one)], 0)
                   for name, one in self._module.named_parameters(remove_duplicate=False)
                   if id(one) in self._number]
        for name, one in self._unpaged().items():
            own = one.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            tensors.append((name, str(one.dtype).removeprefix("torch."), list(one.shape),
                            lambda own=own: [(0, own)] if self._is_first else []))
        return tensors

    def _tensor(self, name: str, number: int, kind: int) -> Any:
        shape = list(self._parameters[number].shape)
        return name, "float32", shape, lambda: self._states.pieces(number, kind)


def _check_form(folder: Path, name: str, found: Stored | None, shape: torch.Size,
                kind: str) -> None:
    """Refuse a tensor whose shape or kind is not the model's. Precisions may differ."""
    if found is None:
        raise CheckpointError(f"{folder} has no tensor {name}: it is of another model")
    both_real = all("float" in one for one in (kind, found.kind))
    if found.shape != list(shape) or (kind != found.kind and not both_real):
        raise CheckpointError(f"{folder}: tensor {name} is {found.kind} {found.shape}, and the "
                              f"model's is {kind} {list(shape)}")


def _as_json(kept: Mapping[str, Any]) -> bytes:
    if not isinstance(added := kept["client_state"], dict):
        raise CheckpointError(f"client_state is a {type(added).__name__}: an object is possible")
    try:
        return json.dumps(kept).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"client_state cannot be saved, for JSON cannot hold it: {error}"
                              ) from None


def _as_bytes(scheduler: Any) -> bytes:
    """Give a scheduler's state, which may have keys that JSON has no form for."""
    if scheduler is None:
        return b""
    state, file = scheduler.state_dict(), io.BytesIO()
    try:
        torch.save(state, file)
        _loaded(file.getvalue())
    except Exception as error:  # whatever the state's own objects raise
        raise CheckpointError(f"the state of {type(scheduler).__name__} cannot be saved: "
                              f"{first_line(error)}") from None
    return file.getvalue()


def _read_scheduler(path: Path) -> dict[str, Any] | None:
    """Give the state of a scheduler. CheckpointError."""
    if not path.exists():
        log.warning("%s is not there: the scheduler goes on from its own state", path)
        return None
    try:
        return _loaded(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except Exception:  # torch raises many kinds for damaged files
        raise CheckpointError(f"{path} is no state of a scheduler") from None


def _loaded(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
    return found
