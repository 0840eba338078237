"""Keys of the runs: workload, jobs, scenarios, background traffic, faults and expectations."""

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Strict, Tag, model_validator

from sim.schema.base import Count, Flag, Line, Model, Name, Title, one_of
from sim.schema.hosts import Bond
from sim.schema.input_errors import Problem, listing, missing, show
from sim.schema.model_file import ModelFile
from sim.schema.offload_keys import Offload
from sim.schema.parallel_keys import Parallel, ShardWord
from sim.schema.sync_keys import Sync
from sim.schema.trace_keys import TraceKey
from sim.schema.transformer_keys import ModelKey
from sim.schema.units import Bytes, Period, PositiveBytes, PositiveShare, Rate, Seconds
from sim.workloads.model import Model as Network
from sim.workloads.models import get_model
from sim.workloads.transformer import build


def _no_word(value: Any) -> Any:
    """Refuse ``true`` and ``false``, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        raise Problem(f"found {show(value)}", found=value, allowed="0, 1")
    return value


Switch = Annotated[Literal[0, 1], BeforeValidator(_no_word)]
Collective = Literal["allreduce", "reduce-scatter", "allgather", "broadcast", "alltoall"]
Threshold = Annotated[int, Strict(), Field(ge=0, le=2**53)]


Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]


class Workload(Model):
    """The training job's model and how it is trained."""

    model_config = ConfigDict(json_schema_extra={
        "oneOf": [{"required": ["model", "batch"]}, {"required": ["trace"]}]})

    model: ModelKey = ""
    """Name of a model, e.g. vgg16; the path of a Hugging Face config.json, or of a model.yaml of
    sim.trace; or a transformer by hand. It has to be there, unless trace is."""
    batch: Count = 1
    """Samples per GPU and micro-step, hence a step where nothing accumulates. It has to be there,
    unless trace is."""
    trace: TraceKey | None = None
    """Execution traces (MLCommons Chakra) to replay, instead of a model: the common name of their
    files, as traces/gpt for traces/gpt.0.et and so on, or a mapping."""
    framework: str = "horovod"
    """Set of framework costs."""
    precision: Precision = "fp32"
    """Type of matrix products, and of activations, parameters and gradients: 4 B an element (fp32,
    tf32) or 2 B (bf16, fp16, and fp8, whose gradients are bf16)."""
    gradients: Literal["as-precision", "fp32"] = "as-precision"
    """Type in which gradients are added up and sent; fp32 for torch.autocast under DDP, for
    Megatron's grad-reduce-in-fp32 and for torchtitan's reduction in fp32."""
    accumulation: Annotated[Count, Field(le=65536)] = 1
    """Micro-steps of a step, each of ``batch`` samples; only the last one's gradients are sent."""
    recompute: Literal["none", "selective", "ops", "full"] = "none"
    """Results that the backward pass computes again instead of keeping them: nothing, the scores of
    attention, all but every second matrix product and attention (torchtitan's selective "op"), or
    each block."""
    flash: Flag = True
    """Whether attention keeps no scores for the backward pass, as FlashAttention and PyTorch's own
    kernels; matters to memory only."""
    kernels: Literal["eager", "fused"] = "eager"
    """How norms, rotary positions, gates and the loss of a language model are computed, and
    gradients of micro-steps added: operation by operation, as PyTorch does by itself, or by one
    kernel each, as torch.compile, Megatron-LM and Transformer Engine do."""
    channels_last: Flag = False
    """Whether convolutions' maps have their channels last, as matrix units want them (PyTorch's
    channels_last); else cuDNN transposes them around each convolution in tf32, bf16 and fp16."""
    sequence: Annotated[Count, Field(le=2**24)] | None = None
    """Tokens of a sample of text; of a model by name its usual ones where not given."""

    @model_validator(mode="before")
    @classmethod
    def _model_or_trace(cls, data: Any) -> Any:
        """Ask for a model and its batch, or for traces and nothing that is of a model."""
        if not isinstance(data, dict):
            return data
        if data.get("trace") is None:
            for key in ("model", "batch"):
                if key not in data:
                    raise missing(key, data)
            return data
        for key in data:
            if key in cls.model_fields and key not in ("trace", "precision"):
                raise Problem("has no meaning beside trace", path=(key,), at_key=True,
                              allowed="trace, and precision for what it runs by FLOPs")
        return data

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of activations and parameters."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of gradients."""
        return 4 if self.gradients == "fp32" else self.element_bytes

    @property
    def has_network(self) -> bool:
        """Whether `network` is one."""
        try:
            return bool(self.network.layers)
        except ValueError:
            return False

    @property
    def network(self) -> Network:
        """The model, for samples of ``tokens``; raises ValueError where the workload has none."""
        if self.trace is not None:
            raise ValueError("execution traces have no model")
        if isinstance(self.model, str):
            return get_model(self.model, self.sequence)
        if isinstance(self.model, ModelFile):
            if self.sequence is not None:
                raise ValueError("a traced model has samples of one size")
            return self.model.network
        shape = self.model.shape
        if shape.patches is not None:
            if self.sequence is not None:
                raise ValueError("a model of images has samples of one size")
        elif self.sequence is None:
            raise ValueError("a model of text needs sequence beside it, the tokens of a sample")
        elif 0 < shape.positions < self.sequence:
            raise ValueError(f"the model has learned {shape.positions} positions and no more")
        return build(shape, self.sequence or 0)


class Job(Model):
    """A training job on hosts of its own, beside other jobs on the fabric."""

    name: Name
    """Name of the job."""
    hosts: Annotated[tuple[str, ...], Field(min_length=1)]
    """Hosts it runs on; it uses all of their GPUs."""
    workload: Workload | None = None
    """Its workload; that of the file where not given."""
    start: Seconds = 0.0
    """When its first step begins."""


class Fusion(Model):
    """How gradients are gathered into buckets before a collective."""

    rule: Literal["cycle", "size"] | None = None
    """Horovod's rule, by cycles of time, or DistributedDataParallel's, by sizes set beforehand;
    where not given, that of the framework: size for ddp and what is based on it."""
    threshold: Bytes | None = None
    """Bytes at which a bucket goes (128MiB by cycle, 25MiB by size, Megatron's own rule for
    megatron); 0 sends each tensor alone."""
    cycle: Seconds = 1e-3
    """Time after which what has gathered is sent; by size it has no effect."""

    def threshold_bytes(self, rule: str) -> int:
        """The threshold, or the default of the rule (of Horovod since 0.21, of PyTorch)."""
        default = (128 if rule == "cycle" else 25) * 2**20
        return default if self.threshold is None else self.threshold


class Light(Model):
    """LightCC's settings, under the names of its environment variables, as plain numbers."""

    LIGHT_2D_ALLREDUCE: Switch | None = None
    """1: reduce inside the host first, then between hosts."""
    LIGHT_INTRA_SIZE: Count | None = None
    """GPUs of an inner group."""
    LIGHT_HIERARCHICAL_THRESHOLD: Threshold | None = None
    """Largest buffer, in bytes, that goes the 2D way."""
    LIGHT_TOPK_ALLREDUCE: Switch | None = None
    """1: send only the largest gradients of large buffers."""
    LIGHT_TOPK_RATIO: Annotated[float, Strict(), Field(ge=1e-6, le=1)] | None = None
    """Share of the elements that is sent."""
    LIGHT_TOPK_THRESHOLD: Threshold | None = None
    """Smallest buffer, in bytes, that is sent only in part."""
    LIGHT_TOPK_FP16: Switch | None = None
    """1: send the values as fp16."""
    LIGHT_BITS: Literal[2, 4, 8, 32] | None = None
    """Bits in which a value of a large buffer of float32 is sent; 32: whole."""
    LIGHT_BITS_RING: Switch | None = None
    """1: send these bits around a ring of all ranks, in place of each to each other one."""
    LIGHT_SMALL_THRESHOLD: Threshold | None = None
    """Largest buffer, in bytes, that goes by doublings where no other setting holds."""

    @property
    def settings(self) -> dict[str, int | float]:
        """The settings that the file gives, name to number."""
        return {name: value for name, value in self if value is not None}


class Scenario(Model):
    """One way to run the workload; each gives a row for each number of GPUs."""

    name: Title
    """Heading of its rows."""
    stack: str
    """Host stack: a shipped set or one under stacks."""
    gpus: Annotated[tuple[Count, ...], Field(min_length=1, max_length=256)] | None = None
    """Numbers of GPUs, a row each; all of them where not given."""
    framework: str | None = None
    """Set of framework costs; the workload's where not given."""
    allreduce: Literal["nccl", "light", "ring", "tree", "halving-doubling", "2d"] = "nccl"
    """Algorithm; nccl is what NCCL chooses for each buffer, a ring or a tree with LL, LL128 or
    Simple; light chooses for each buffer by the LIGHT_* settings."""
    light: Light | None = None
    """LightCC's settings."""
    alltoall: Literal["direct", "hierarchical", "once-per-host", "chosen"] = "direct"
    """How experts (model moe) exchange activations: a copy for each expert all at once, or within
    hosts, then between; a copy for each host, passed on there; or, of algorithms with a copy for
    each rank or host, what AngelPTM's layer of experts would choose. The last two for even
    routing."""
    expert_chunks: Annotated[Count, Field(le=64)] = 1
    """Number of parts into which a GPU cuts its tokens. Experts compute on one part while another
    is sent, as in AngelPTM's layer (4 there by default). With 1 experts wait for all tokens."""
    expert_overlap: Literal["none", "micro-steps"] = "none"
    """Overlap of experts' all-to-alls with compute. With micro-steps they run beside the compute
    of another micro-step, and only the last micro-step waits for them (DualPipe; Megatron's
    overlap-moe-expert-parallel-comm). A GPU then keeps the activations of one more micro-step."""
    parallel: Annotated[Parallel, ShardWord()] = Parallel()
    """How the model is split over the GPUs; ``data`` (every GPU holds all of it), ``zero1``,
    ``zero2``, ``fsdp`` and ``hsdp`` stand for a mapping with that shard."""
    tensor: Annotated[Count, Field(le=64)] = 1
    """The same as tensor under parallel."""
    fp16: Flag = False
    """Send gradients as fp16."""
    fusion: Fusion = Fusion()
    """Gathering of gradients into buckets."""
    channels: Annotated[Literal["auto"] | Annotated[Count, Field(le=64)],
                        one_of("auto, or a whole number from 1 to 64", "auto")] = "auto"
    """NCCL channels: concurrent rings or trees; auto: as many as NCCL opens on such hosts."""
    sockets: Annotated[Count, Field(le=64)] | None = None
    """Sockets, hence flows, of each connection (a channel to a peer); where not given, one, or as
    many as NCCL takes for the NIC's driver if the stack is one of kernel TCP."""
    helpers: Annotated[int, Strict(), Field(ge=0, le=16)] | None = None
    """Threads that move the bytes of one connection over kernel TCP (NCCL_SOCKET_NTHREADS); 0 lets
    the proxy thread of the process do it. NCCL's choice for the NIC's driver where not given."""
    congestion: Literal["cubic", "dctcp", "bbr"] | None = None
    """Congestion control of kernel TCP where there are packets (fidelity packet); cubic where not
    given."""
    streams: Annotated[Count, Field(le=64)] = 1
    """Collectives in flight at once."""
    routing: Literal["ecmp", "spray", "plan"] = "ecmp"
    """Hash of the five-tuple, packet spray, or planned source ports."""
    affinity: Flag = True
    """Order ranks so that traffic stays under a ToR or on a rail."""
    bond: Bond | None = None
    """Overrides the NICs' bond."""
    jobs: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Names of the jobs that run; all of them where not given."""
    faults: tuple[str, ...] = ()
    """Names of the faults that strike."""
    background: tuple[str, ...] = ()
    """Names of the background traffic beside its jobs."""
    steps: Annotated[Count, Field(le=10_000)] = 1
    """Steps simulated; their mean is reported, and the timeline of the last one."""
    offload: Offload | None = None
    """Keep states that a GPU cannot hold in the host's memory or on its disk, in pages."""
    sync: Sync | None = None
    """Hosts train by themselves and meet every so often, instead of in each step."""

    @property
    def layout(self) -> Parallel:
        """How the model is split, wherever the file says so."""
        if self.tensor == 1:
            return self.parallel
        return self.parallel.model_copy(update={"tensor": self.tensor})

    @property
    def light_settings(self) -> dict[str, int | float]:
        """The LIGHT_* settings that the file gives, for ``LightSettings.from_env``."""
        return {} if self.light is None else self.light.settings

    @model_validator(mode="before")
    @classmethod
    def _light_has_effect(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("light") is None:
            return data
        if data.get("allreduce", "nccl") in ("nccl", "ring", "tree", "halving-doubling"):
            raise Problem("has no effect on this allreduce", path=("light",), at_key=True,
                          allowed="allreduce: light or allreduce: 2d beside it")
        if data.get("allreduce") == "2d" and isinstance(data["light"], dict):
            for key in data["light"]:
                if key.startswith(("LIGHT_TOPK_", "LIGHT_HIERARCHICAL_")):
                    raise Problem("has no effect on allreduce: 2d", path=("light", key),
                                  at_key=True, allowed="allreduce: light beside it")
        return data


class Expect(Model):
    """A published or measured figure that a row is held against."""

    scenario: str
    """Name of the scenario."""
    gpus: Count
    """Number of GPUs of the row."""
    job: str | None = None
    """The job, where several run."""
    images_per_s: Annotated[float, Strict(), Field(ge=1e-6, le=1e15)]
    """The figure, in samples per second over all GPUs of the row."""
    kind: Literal["fitted", "predicted", "published", "measured"]
    """Role of the figure for the simulator."""
    within: PositiveShare
    """Largest relative error that counts as agreement."""
    source: Line
    """Where the figure stands."""
    fits: Annotated[Line, Field(min_length=1)] | None = None
    """Parameter that was fitted to this row, e.g. kernel-tcp.cost_per_byte or gpus.effective."""


class ExpectCollective(Model):
    """A published or measured figure of one collective; it says a size where Expect says GPUs."""

    scenario: str
    """Name of the scenario whose stack and settings it is about."""
    collective: Collective = "allreduce"
    """The collective that was timed, over all GPUs."""
    size: PositiveBytes
    """Its size, as nccl-tests counts."""
    algorithm: Literal["nccl", "ring", "tree"] | None = None
    """Its algorithm; of an allreduce the scenario's where not given, of others the one there is."""
    busbw: Rate | None = None
    """Bus bandwidth, as nccl-tests counts it."""
    algbw: Rate | None = None
    """Size over time."""
    time: Period | None = None
    """Time of one."""
    kind: Literal["published", "measured"]
    """Role of the figure for the simulator."""
    within: PositiveShare
    """Largest relative error that counts as agreement."""
    source: Line
    """Where the figure stands."""

    @model_validator(mode="after")
    def _one_quantity(self) -> "ExpectCollective":
        given = [name for name in ("busbw", "algbw", "time") if getattr(self, name) is not None]
        if len(given) != 1:
            raise Problem(f"gives {', '.join(given) or 'no quantity'}",
                          allowed="one of busbw, algbw and time")
        if self.algorithm is not None and self.collective != "allreduce":
            raise Problem(f"{self.collective} has no {self.algorithm}", path=("algorithm",),
                          allowed="algorithm of an allreduce only")
        return self


def _kind_of_figure(data: Any) -> str:
    names = data if isinstance(data, dict) else type(data).model_fields
    return "of a collective" if "size" in names or "collective" in names else "training"


AnyExpect = Annotated[Annotated[Expect, Tag("training")]
                      | Annotated[ExpectCollective, Tag("of a collective")],
                      Discriminator(_kind_of_figure)]
"""A figure of training, or (with a collective or a size) one of a collective."""


class Background(Model):
    """Flows of kernel TCP that come at random, in sizes that were measured."""

    name: Name
    """Name for scenarios to refer to."""
    senders: Annotated[tuple[str, ...], Field(min_length=1)]
    """Hosts from which flows come, from all of their NICs."""
    receivers: Annotated[tuple[str, ...], Field(min_length=1)]
    """Hosts to which they go; each flow goes to a NIC drawn anew, of another host."""
    load: Annotated[PositiveShare, Field(lt=1)]
    """Mean of what they put on the lines, with headers, as a share of the senders' line rate."""
    sizes: Literal["web-search", "data-mining"] = "web-search"
    """How many bytes flows have: as in DCTCP's cluster (SIGCOMM 2010; 1.7 MB in the mean) or in
    VL2's (SIGCOMM 2009; half have 1 kB, and the mean is 13 MB)."""
    congestion: Literal["cubic", "dctcp", "bbr"] = "cubic"
    """Their congestion control, where there are packets (fidelity packet)."""


class _Fault(Model):
    name: Name
    """Name for scenarios to refer to."""
    at: Seconds
    """When it begins."""
    duration: Period | None = Field(None, alias="for")
    """How long it lasts; to the end where not given."""


class _LinkFault(_Fault):
    link: Annotated[str, Field(min_length=3, max_length=300)]
    """``a-b`` for both directions of the link between a and b, ``a->b`` for one."""


class _Rerouted(_LinkFault):
    detection: Seconds = 50e-3
    """From the fault to its being noticed."""
    recovery: Seconds = 10e-3
    """From being noticed to traffic on other paths."""


class LinkDown(_Rerouted):
    """The link carries nothing."""

    kind: Literal["link-down"]
    """The kind of fault."""


class LinkDegrade(_LinkFault):
    """The link carries a share of its rate."""

    kind: Literal["link-degrade"]
    """The kind of fault."""
    factor: PositiveShare
    """Share of the rate that is left."""


class LinkFlap(_Rerouted):
    """The link goes down and up again, half of each period."""

    kind: Literal["link-flap"]
    """The kind of fault."""
    period: Period = 10e-3
    """Length of one down and up."""


class SlowGpu(_Fault):
    """One GPU computes at a share of its speed."""

    kind: Literal["slow-gpu"]
    """The kind of fault."""
    gpu: Annotated[str, Field(min_length=1)]
    """The GPU as host/index, e.g. gn10xp-0/3."""
    factor: PositiveShare
    """Share of the speed that is left."""


Fault = Annotated[LinkDown | LinkDegrade | LinkFlap | SlowGpu, Field(discriminator="kind")]
"""A fault, identified by its ``kind``."""


def link_ends(link: str, nodes: Collection[str]) -> tuple[str, str, bool]:
    """Nodes that ``a-b`` or ``a->b`` names, and whether it means one direction only.

    Names may hold hyphens themselves, so every split is tried against ``nodes``. Raises Problem.
    """
    arrow = "->" in link
    mark = "->" if arrow else "-"
    parts = link.split(mark)
    splits = [(mark.join(parts[:cut]), mark.join(parts[cut:])) for cut in range(1, len(parts))]
    for near, far in splits:
        if near in nodes and far in nodes:
            return near, far, arrow
    right = (near + mark + node if near in nodes else node + mark + far
             for near, far in splits if near in nodes or far in nodes for node in nodes)
    raise Problem(f"{show(link)} does not join two nodes of the fabric", found=link, names=right,
                  allowed=f"a-b or a->b with a and b among {listing(nodes)}")
