"""Checkpoints of a model in pages: which tensors they have, and where each of them lies.

`harp.angelptm.checkpoint` knows the files. All ranks write and read at once, each its own parts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from harp.angelptm import checkpoint
from harp.angelptm.checkpoint import CheckpointError
from harp.angelptm.pages import WIDE
from harp.angelptm.ranks import alike

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harp.angelptm.pages import Layout
    from harp.angelptm.ranks import Ranks
    from harp.angelptm.states import States


class Saving:
    """Saves and loads, between two steps."""

    def __init__(self, module: torch.nn.Module, parameters: Sequence[torch.nn.Parameter],
                 layout: Layout, states: States, ranks: Ranks | None) -> None:
        self._module, self._parameters = module, parameters
        self._layout, self._states, self._ranks = layout, states, ranks
        self._number = {id(one): number for number, one in enumerate(parameters)}
        self._persistent = set(module.state_dict())

    def save(self, folder: Path, tag: str, kept: Mapping[str, Any]) -> None:
        """Save all tensors, and what JSON can hold beside them."""
        fresh = checkpoint.fresh_folder(folder, tag)
        files = {"model.safetensors": self._model_tensors(),
                 "optimizer.safetensors": [self._tensor(f"{name}.{kind}", number, place)
                                           for number, name in enumerate(self.names())
                                           for place, kind in ((1, "mean"), (2, "square"))]}
        with alike(self._ranks):
            if self._is_first:
                checkpoint.begin(folder, tag)
                for name, tensors in files.items():
                    checkpoint.write_header(fresh / name, tensors)
        with alike(self._ranks):
            for name, tensors in files.items():
                checkpoint.write_tensors(fresh / name, tensors)
        with alike(self._ranks):
            if self._is_first:
                checkpoint.write_text(fresh / "state.json", json.dumps(kept))
                checkpoint.publish(folder, tag)

    def load(self, load_dir: Path, tag: str | None, groups: int) -> tuple[Path, dict[str, Any]]:
        """Load all tensors; returns the checkpoint's folder, and what was kept beside them.

        Raises CheckpointError, and then nothing was changed.
        """
        with alike(self._ranks):
            folder = checkpoint.find(load_dir, tag)
            model, states, kept = self._read(folder, groups)
        with alike(self._ranks):
            for number, name in enumerate(self.names()):
                self._states.restore(number, (model[name], states[f"{name}.mean"],
                                              states[f"{name}.square"]))
            if self._ranks:
                self._states.forget()
        for name, tensor in self._unpaged().items():
            tensor.copy_(torch.frombuffer(bytearray(model[name]), dtype=tensor.dtype).view(
                tensor.shape))
        return folder, kept

    def _read(self, folder: Path, groups: int) -> tuple[Any, Any, Any]:
        """Give the tensors of a checkpoint, which are those of this model."""
        model, states = (checkpoint.read_tensors(folder / f"{name}.safetensors")
                         for name in ("model", "optimizer"))
        names = self.names()
        kept = checkpoint.read_state(folder / "state.json", names, groups)
        wide = [WIDE * size for size in self._layout.sizes]
        wanted = [(model, name, size) for name, size in zip(names, wide, strict=True)]
        wanted += [(states, f"{name}.{kind}", size) for name, size in zip(names, wide, strict=True)
                   for kind in ("mean", "square")]
        wanted += [(model, name, one.nbytes) for name, one in self._unpaged().items()]
        for tensors, name, size in wanted:
            if len(tensors.get(name, b"")) != size:
                raise CheckpointError(f"{folder}: tensor {name} is missing or of another size")
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
        own = {name: one.data for name, one in self._module.named_parameters()
               if id(one) not in self._number}
        return own | {name: one for name, one in self._module.named_buffers()
                      if one.numel() and name in self._persistent}

    def _model_tensors(self) -> list[Any]:
        """All of the state_dict; tied weights by each of their names."""
        tensors = [self._tensor(name, self._number[id(one)], 0)
                   for name, one in self._module.named_parameters(remove_duplicate=False)
                   if id(one) in self._number]
        for name, one in self._unpaged().items():
            own = one.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            tensors.append((name, str(one.dtype).removeprefix("torch."), list(one.shape), len(own),
                            lambda own=own: [(0, own)] if self._is_first else []))
        return tensors

    def _tensor(self, name: str, number: int, kind: int) -> Any:
        shape = list(self._parameters[number].shape)
        return (name, "float32", shape, WIDE * self._layout.sizes[number],
                lambda: self._states.pieces(number, kind))
