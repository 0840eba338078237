"""The file of a traced model: what `python -m sim.trace script.py:build` writes.

Counts are those of one sample. A layer says nothing of what is 0. With times of its own a layer
takes these, and not its FLOPs over the GPU's rate.
"""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field, Strict, model_validator

from sim.schema.base import Flag, Line, Model, Title
from sim.schema.input_errors import Problem, show
from sim.schema.source import Source
from sim.workloads.layers import Layer, Tensor
from sim.workloads.model import Model as Network

SUFFIXES = (".yaml", ".yml")
Amount = Annotated[int, Strict(), Field(ge=0, le=10**18)]
Time = Annotated[float, Field(ge=0, le=1e6)]


def _pairs(value: Any) -> Any:
    """A mapping as pairs, which can be hashed, as all of a topology can."""
    if isinstance(value, dict):
        return tuple(value.items())
    if isinstance(value, tuple):
        return value
    raise Problem(f"found {show(value)}", found=value,
                  allowed="a mapping of names of parameters to their elements")


class LayerOfFile(Model):
    """A layer: what it computes for a sample, learns, and keeps for the backward pass."""

    name: Title
    block: Line = ""
    """Block of like ones that it is part of."""
    forward_flops: Amount = 0
    backward_flops: Amount = 0
    forward_s: Time = 0.0
    """Measured seconds."""
    backward_s: Time = 0.0
    tensors: Annotated[tuple[tuple[Line, Annotated[int, Strict(), Field(ge=1, le=10**13)]], ...],
                       BeforeValidator(_pairs), Field(max_length=10_000)] = ()
    """Elements of each parameter; gradients are complete from the last one to the first."""
    tables: Annotated[tuple[tuple[Line, Annotated[int, Strict(), Field(ge=1, le=10**15)]], ...],
                      BeforeValidator(_pairs), Field(max_length=10_000)] = ()
    """Elements of each table of embeddings, which is spread over the GPUs."""
    lookups: Amount = 0
    """Ids that a sample looks up in them."""
    looked_up: Amount = 0
    """Elements of the rows of these ids."""
    kept: Amount = 0
    """Elements of floating point."""
    masks: Amount = 0
    """Bytes of all else."""
    scores: Amount = 0
    """Elements of attention's scores, which fused kernels do not keep."""

    maps: Amount = 0
    """Elements of a convolution's input and output."""
    winograd: Flag = False
    """Whether it is 3 x 3 at stride 1."""
    moved_forward: Amount = 0
    """Elements that kernels beside products read and write, in a network of convolutions."""
    moved_backward: Amount = 0

    @model_validator(mode="after")
    def _looks_up(self) -> "LayerOfFile":
        given = {key: bool(getattr(self, key)) for key in ("tables", "lookups", "looked_up")}
        if len(set(given.values())) > 1:
            missing = next(key for key, there in given.items() if not there)
            raise Problem(f"has no {missing}", path=(), allowed="tables, lookups and looked_up "
                          "together, or none of them")
        return self

    @property
    def layer(self) -> Layer:
        """The layer that the simulator trains."""
        same = set(LayerOfFile.model_fields) - {"tensors", "tables", "looked_up"}
        return Layer(tensors=tuple(Tensor(*each) for each in self.tensors),
                     expert_tensors=tuple(Tensor(*each) for each in self.tables),
                     alltoall_elements=self.looked_up,
                     **{key: getattr(self, key) for key in same})


class ModelFile(Model):
    """A model, layer by layer."""

    name: Title
    source: Line
    """Where it comes from."""
    sample: Title
    """Word for a sample."""
    tokens: Annotated[Amount, Field(le=2**24)] = 0
    """Tokens of a sample; 0 where it is no text."""
    between_blocks: Amount = 0
    """Elements that go from block to block for a sample; 0 where blocks differ."""
    layers: Annotated[tuple[LayerOfFile, ...], Field(min_length=1, max_length=100_000)]
    """In forward order."""

    @model_validator(mode="after")
    def _can_train(self) -> "ModelFile":
        if not any(layer.tensors for layer in self.layers):
            raise Problem("no layer has a parameter", path=("layers",), at_key=True,
                          allowed="tensors in at least one")
        if not any(layer.forward_flops for layer in self.layers):
            raise Problem("no layer computes", path=("layers",), at_key=True,
                          allowed="forward_flops in at least one")
        return self

    @cached_property
    def network(self) -> Network:
        """The model that the simulator trains."""
        return Network(self.name, tuple(layer.layer for layer in self.layers), self.sample,
                       self.source, self.between_blocks, self.tokens)


def read_model_file(path: Path) -> ModelFile:
    """Read and check a file; raises TopologyError."""
    return Source.read(path).validate(ModelFile)


def text_of(model: Network) -> str:
    """The file of a model."""
    plain: dict[str, Any] = {"name": model.name, "source": model.source, "sample": model.sample}
    plain |= {key: value for key, value in (("tokens", model.tokens), (
        "between_blocks", model.activations)) if value}
    plain["layers"] = [_plain(layer) for layer in model.layers]
    return yaml.safe_dump(plain, sort_keys=False, width=100)


def _plain(layer: Layer) -> dict[str, Any]:
    given = {key: getattr(layer, key) for key in LayerOfFile.model_fields
             if key not in ("tensors", "tables", "looked_up")}
    given |= {key: float(f"{given[key]:.6g}") for key in ("forward_s", "backward_s")}
    return {key: value for key, value in given.items() if value} | (
        {"tensors": {each.name: each.elements for each in layer.tensors}} if layer.tensors else {})
