"""Keys of a transformer by hand, and the file of a model: what ``workload.model`` may be.

A Hugging Face ``config.json`` is read into the same keys (`sim.workloads.huggingface`), so that a
file means what its numbers mean, wherever they stand. A YAML file is a traced model
(`sim.schema.model_file`). A path is taken from the topology file's folder.
"""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from sim.schema.base import Count, Flag, Model
from sim.schema.input_errors import Problem, TopologyError, problems, show
from sim.schema.json_text import parse_json
from sim.schema.model_file import SUFFIXES, ModelFile, read_model_file
from sim.schema.source import read_input
from sim.workloads.huggingface import keys_of
from sim.workloads.transformer import Experts, Latent, Patches, Transformer

Number = Annotated[int, Strict(), Field(ge=0, le=10_000_000)]
Wide = Annotated[int, Strict(), Field(ge=1, le=10_000_000)]
MOST_BYTES = 4 << 20
"""Largest file of a model's configuration."""


class ExpertKeys(Model):
    """A mixture of experts in place of some layers' feed-forward network."""

    count: Count
    """Experts of a layer."""
    top_k: Count = 1
    """Experts that each token goes to."""
    ffn: Wide
    """Width inside an expert."""
    shared: Number = 0
    """Width of a network that all tokens pass as well."""
    shared_gate: Flag = False
    """Whether a vector of the width weighs what that network gives, as in Qwen 2."""
    every: Count = 1
    """One layer in this many has a mixture, the last of each group."""
    first: Number = 0
    """Layers at the beginning that have none."""
    groups: Count = 1
    """Groups of neighbouring experts. A token goes to top_groups of them, and to experts of these
    alone, as in DeepSeek-V3; it matters to alltoall: once-per-host and chosen."""
    top_groups: Count = 1
    """Groups that each token goes to."""

    @model_validator(mode="after")
    def _has_whole_groups(self) -> "ExpertKeys":
        if self.top_k > self.count:
            raise Problem(f"{self.top_k} experts a token of {self.count}", path=("top_k",),
                          found=self.top_k, allowed=f"1 to {self.count}")
        if self.count % self.groups:
            raise Problem(f"{self.groups} groups do not divide {self.count} experts",
                          path=("groups",), found=self.groups, allowed="a number that divides them")
        each = self.count // self.groups
        if not -(-self.top_k // each) <= self.top_groups <= self.groups:
            raise Problem(f"{self.top_k} experts of a token in {self.top_groups} of {self.groups} "
                          f"groups of {each}", path=("top_groups",), found=self.top_groups,
                          allowed=f"{-(-self.top_k // each)} to {self.groups}")
        return self


class LatentKeys(Model):
    """Attention with latent keys and values, as DeepSeek's."""

    kv_rank: Wide
    """Width of the vector that keys and values come out of."""
    q_rank: Number = 0
    """Width of the vector that queries come out of; 0: they are projected at once."""
    nope: Wide
    """Elements of a head without position."""
    rope: Wide
    """Elements of a head that carry the position."""
    value: Wide
    """Elements of a head's values."""


class PatchKeys(Model):
    """An image in patches, each a token, and a token for the class."""

    image: Count
    """Side of the image in pixels."""
    size: Count
    """Side of a patch."""
    channels: Count = 3
    """Colours."""
    classes: Number = 0
    """Classes of the output; 0: no output layer."""


class TransformerKeys(Model):
    """A transformer by hand."""

    layers: Annotated[Count, Field(le=1024)]
    """Layers of the main stack."""
    width: Wide
    """Elements of the vector that goes from layer to layer."""
    heads: Count
    """Heads of attention."""
    vocabulary: Number = 0
    """Rows of the table of words."""
    kv_heads: Number = 0
    """Heads of keys and values; as many as heads where not given."""
    head_width: Number = 0
    """Elements of a head; width over heads where not given."""
    ffn: Number = 0
    """Width inside the feed-forward network; four times the width where not given."""
    gated: Flag = False
    """Whether the network has a gate (SwiGLU, GeGLU), hence three matrices."""
    norm: Literal["layer", "rms"] = "layer"
    """Normalisation."""
    norms: Literal[2, 4] = 2
    """Normalisations of a layer; 4: also behind attention and network, as Gemma 2."""
    bias: Literal["none", "qkv", "all"] = "none"
    """Linear layers that add a bias."""
    qk_norm: Flag = False
    """Whether queries and keys are normalised, as in Qwen 3."""
    head: Literal["own", "tied", "none"] = "own"
    """Output layer: with weights of its own, with those of the table of words, or none."""
    positions: Number = 0
    """Learned positions, the longest sequence then; 0: positions are computed."""
    types: Number = 0
    """Rows of the table of segments, as in BERT, which normalises behind it."""
    pooler: Flag = False
    """Whether a last layer takes the first token, as in BERT."""
    window: Number = 0
    """Tokens that a token attends to; 0: all."""
    full_every: Number = 0
    """One layer in this many attends to all in spite of the window; 0: none."""
    encoder: Annotated[int, Strict(), Field(ge=0, le=1024)] = 0
    """Layers of an encoder before it, which every layer attends to as well, as in T5."""
    buckets: Number = 0
    """Rows of the tables of relative positions, as in T5."""
    dropout: Flag = False
    """Whether dropout's masks are kept for the backward pass."""
    ahead: Annotated[int, Strict(), Field(ge=0, le=16)] = 0
    """Layers behind the stack that each predict one token more in training, as in DeepSeek-V3. The
    last stage of a pipeline has their output layers, too."""
    experts: ExpertKeys | None = None
    """A mixture of experts."""
    latent: LatentKeys | None = None
    """Latent keys and values."""
    patches: PatchKeys | None = None
    """Images for words."""

    @model_validator(mode="after")
    def _fits(self) -> "TransformerKeys":
        if not self.head_width and self.width % self.heads:
            raise Problem(f"{self.heads} heads do not divide a width of {self.width}",
                          path=("heads",), found=self.heads,
                          allowed="a number that divides the width, or head_width beside it")
        if self.kv_heads and self.heads % self.kv_heads:
            raise Problem(f"{self.kv_heads} heads of keys do not divide {self.heads}",
                          path=("kv_heads",), found=self.kv_heads,
                          allowed="a number that divides heads")
        if not self.vocabulary and self.patches is None:
            raise Problem("has neither vocabulary nor patches",
                          allowed="one of the two, e.g. vocabulary: 32000")
        if self.ahead and (self.head == "none" or self.patches is not None or self.encoder):
            raise Problem("layers that predict tokens have no output layer of a decoder",
                          path=("ahead",), found=self.ahead,
                          allowed="0, or a decoder with an output layer (head: own or tied)")
        return self

    @property
    def shape(self) -> Transformer:
        """The model of `sim.workloads.transformer`."""
        parts = {"experts": Experts, "latent": Latent, "patches": Patches}
        given: dict[str, Any] = {each.name: getattr(self, each.name)
                                 for each in fields(Transformer)}
        for name, made in parts.items():
            if given[name] is not None:
                given[name] = made(**dict(given[name]))
        return Transformer(**given)


def read_model(value: Any, info: ValidationInfo) -> Any:
    """Let a path stand for the keys that its file has; names and mappings stay as they are."""
    if isinstance(value, TransformerKeys | ModelFile):
        return value
    if isinstance(value, dict):
        try:
            return TransformerKeys.model_validate(value)
        except ValidationError as error:
            raise problems(error, value)[0] from None
    if not isinstance(value, str):
        raise Problem(f"found {show(value)}", found=value, allowed="the name of a model, the path "
                      "of a config.json or of a traced model, or a mapping of a transformer's keys")
    if not is_model_path(value):
        return value
    path = Path((info.context or {}).get("folder", "."), value)
    try:
        return read_model_file(path) if value.lower().endswith(SUFFIXES) else _read(path)
    except TopologyError as error:
        where = str(path)
        if error.line:
            where += f":{error.line}:" + f" {error.key}:" * bool(error.key)
        near = [] if error.nearest is None else [str(Path(value).with_name(
            Path(error.nearest).name))]  # as the file writes it: from its own folder
        raise Problem(f"{where} {error.says}", found=value, allowed=error.allowed,
                      names=near) from None


def is_model_path(value: str) -> bool:
    """Whether ``workload.model`` is the path of a file, rather than the name of a model."""
    return "/" in value or value.lower().endswith((".json", *SUFFIXES))


def _read(path: Path) -> TransformerKeys:
    file = str(path)
    data = read_input(path, most_bytes=MOST_BYTES, allowed="a config.json")
    config = parse_json(data, file, foreign=True)
    if not isinstance(config, dict):
        raise TopologyError(file, Problem("holds no mapping", allowed="a config.json"))
    try:
        keys = keys_of(config)
    except ValueError as error:
        raise TopologyError(file, Problem(f"cannot be used: {error}")) from None
    try:
        return TransformerKeys.model_validate(keys)
    except ValidationError as error:
        first = problems(error, keys)[0]
        where = ".".join(map(str, first.path))
        raise TopologyError(file, Problem(
            f"{_field(config, first.found)}does not fit as {where or 'a transformer'}: "
            f"{first.says}",
            allowed=first.allowed)) from None


def _field(config: dict[str, Any], value: Any) -> str:
    """Name the field that a refused value comes from, where it is known."""
    inner = config.get("text_config")
    fields = {**config, **inner} if isinstance(inner, dict) else config
    names = [name for name, given in fields.items() if given is value]
    return f"{names[0]} " if len(names) == 1 else ""


ModelKey = Annotated[str | TransformerKeys | SkipJsonSchema[ModelFile],
                     BeforeValidator(read_model)]
"""A model by name, by path, or by hand."""
