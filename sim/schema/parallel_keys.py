"""Keys of how a model is split over GPUs: `Parallel`, what may stand under a scenario's parallel.

Ranks are numbered as Megatron-LM does: those of a tensor-parallel group are neighbours, then those
of a context-parallel group, then data, and the stages of the pipeline lie farthest apart.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from sim.schema.base import Count, Flag, Model
from sim.schema.input_errors import Problem, show

Shard = Literal["none", "zero1", "zero2", "fsdp", "hsdp"]


class Parallel(Model):
    """How a model is split; what is left over are copies, which train batches of their own."""

    data: Count | None = None
    """Copies of the model; the GPUs over all that split it, which must agree, where given."""
    tensor: Annotated[Count, Field(le=64)] = 1
    """GPUs over which every matrix is split: of a host, or all of several hosts, which is slow."""
    sequence: Flag = False
    """Also split what lies between the matrices over them, by tokens; saves memory, and sends as
    much."""
    tensor_overlap: Flag = False
    """Send a piece of what lies between the matrices while the products of another are computed,
    so that the last piece alone is waited for (Megatron's tp-comm-overlap, torch's async tensor
    parallelism)."""
    pipeline: Annotated[Count, Field(le=1024)] = 1
    """Stages of consecutive layers."""
    schedule: Literal["1f1b", "zero-bubble", "zb-v", "dualpipe-v"] = "1f1b"
    """Order of a stage's passes: one forward, one backward; zero-bubble: beside that, gradients of
    weights where it would wait (ZB-H1; torch's InterleavedZeroBubble with interleave); zb-v,
    dualpipe-v: so as well, and the two pieces of each stage lie in a V (torch's ZBVZeroBubble and
    DualPipeV)."""
    interleave: Annotated[Count, Field(le=64)] = 1
    """Pieces of a stage that lie apart, so that the pipeline fills sooner."""
    pipeline_overlap: Flag | None = None
    """With interleave, send activations to other stages while the next pass computes, and wait for
    them only while the pipeline fills and drains (Megatron's overlap-p2p-communication); where not
    given, as the framework does: megatron does, ddp does not."""
    context: Annotated[Count, Field(le=1024)] = 1
    """GPUs over which the tokens of a sample are split; keys and values are gathered."""
    expert: Count | None = None
    """GPUs over which the experts of a layer are spread, beside tensor, which splits each of them;
    all of a stage where not given. With fsdp and hsdp, tokens are sent to experts where it is
    given, and GPUs that have the same experts share their parameters in shards (torchtitan);
    else experts are gathered like all else."""
    shard: Shard = "none"
    """States of which a copy keeps only its share. zero1: optimizer states. zero2: gradients too.
    fsdp: parameters too. hsdp: as fsdp within groups, with copies between them. In a pipeline fsdp
    and hsdp gather once a step, and keep parameters and gradients whole (torchtitan); zero2
    scatters gradients after each micro-step (Megatron-FSDP's optim_grads)."""
    gather_overlap: Flag = False
    """Gather the parameters that zero1 and zero2 updated in shares during the next step's first
    forward pass (Megatron's overlap-param-gather), not before it."""
    replicate: Count | None = None
    """Groups of hsdp (torchtitan's data_parallel_replicate_degree), and each group has all
    parameters in shards; one a host where not given."""

    @model_validator(mode="after")
    def _fits_together(self) -> "Parallel":
        for key, wrong, says, allowed in (
                ("sequence", self.sequence and self.tensor == 1, "has no effect without tensor",
                 "tensor: 2 or more beside it"),
                ("tensor_overlap", self.tensor_overlap and not self.sequence,
                 "has no effect without sequence", "sequence: true beside it"),
                ("interleave", self.interleave > 1 and self.pipeline == 1,
                 "has no effect without pipeline", "pipeline: 2 or more beside it"),
                ("pipeline_overlap", self.pipeline_overlap is not None and self.interleave == 1,
                 "has no effect without interleave", "interleave: 2 or more beside it"),
                ("schedule", self.schedule != "1f1b" and self.pipeline == 1,
                 "has no effect without pipeline", "pipeline: 2 or more beside it"),
                ("schedule", self.is_v and self.interleave != 2,
                 f"{self.schedule} has two pieces a stage", "interleave: 2 beside it"),
                ("gather_overlap",
                 self.gather_overlap and self.shard not in ("zero1", "zero2"),
                 "gathers what zero1 or zero2 spreads", "shard: zero1 or zero2 beside it"),
                ("replicate", self.replicate is not None and self.shard != "hsdp",
                 "has no effect without shard: hsdp", "shard: hsdp beside it")):
            if wrong:
                raise Problem(says, path=(key,), found=getattr(self, key), at_key=True,
                              allowed=allowed)
        return self

    @property
    def split(self) -> int:
        """GPUs that share one copy of the model."""
        return self.tensor * self.context * self.pipeline

    @property
    def is_v(self) -> bool:
        """Whether the pieces of stages lie in a V, the first and the last on the first stage."""
        return self.schedule in ("zb-v", "dualpipe-v")

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are gathered before they are used."""
        return self.shard in ("fsdp", "hsdp")

    @property
    def gathers_experts(self) -> bool:
        """Whether experts are gathered like all else, so that no token is sent to them."""
        return self.is_sharded and self.expert is None


WORDS = ("data", "zero1", "zero2", "fsdp", "hsdp")
"""Words that stand for a mapping: nothing is split, or what shards the copies."""


def _word_or_mapping(value: Any) -> Any:
    if isinstance(value, dict | Parallel):
        return value
    if value in WORDS:
        return {} if value == "data" else {"shard": value}
    raise Problem(f"found {show(value)}", found=value, names=WORDS,
                  allowed=f"{', '.join(WORDS)}, or a mapping of keys to values")


class ShardWord:
    """Annotation that lets a file say one of `WORDS` where a mapping may stand."""

    def __get_pydantic_core_schema__(self, source: Any,
                                     handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_word_or_mapping, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema,
                                     handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(WORDS)}, handler(schema)]}
