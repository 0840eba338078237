"""Layers of a neural network: parameters and FLOPs computed from shapes.

A model (``sim.workloads.models``) is a list of `Layer` in forward order. A layer knows the tensors
it learns, the arithmetic it does for one sample in each direction, and the bytes it hands to an
all-to-all. Nothing else of the network matters to a step's time line.

Counting rules, the same for every layer:

- A multiply-add is two FLOPs. Convolutions and matrix products are counted by their direct
  algorithm (no Winograd, no causal skipping); normalisation counts its scale-and-shift, one
  multiply-add per element. Activations, dropout, softmax, pooling and table look-ups count nothing:
  they are bound by memory, and published GMAC figures leave them out as well.
- Convolutions, normalisations of maps and pools keep their input for the backward pass, a pool with
  the 8-byte places of its maxima as well. ReLUs work in place, on what is kept anyway: torch's
  saved tensors (`sim.workloads.torch_module` counts those of a module).
- A batch normalisation in training reads its input twice and writes; backward it reads input and
  gradient twice and writes. A ReLU in place reads and writes, and reads two and writes one
  backward. A sum of two maps reads two and writes one, and autograd adds up their two gradients.
  Pools count nothing here; of traced modules all kernels count.
- The backward pass of a matrix product is two products of the same size: the gradient of the
  weights and the gradient of the input. A layer fed by data (``first=True``) needs only the former.
- ``tensors`` are replicated on every GPU, so data parallelism averages their gradients.
  ``expert_tensors`` are spread over the GPUs by expert parallelism and take part in no average
  unless there are more GPUs than experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Tensor:
    """A learned array: its name and how many elements it has."""

    name: str
    elements: int


@dataclass(frozen=True)
class Layer:
    """One operator of a model, with everything counted for one sample."""

    name: str
    tensors: tuple[Tensor, ...] = ()
    """Replicated parameters, in the order in which the framework registers them."""
    forward_flops: int = 0
    backward_flops: int = 0
    alltoall_elements: int = 0
    """Activation elements that one sample sends through one all-to-all. An expert layer runs two in
    the forward pass (dispatch and combine) and two in the backward pass."""
    expert_tensors: tuple[Tensor, ...] = ()
    """Parameters that exist once per expert, all experts counted; tables that are spread, too."""
    experts: int = 0
    """Experts to choose from, and those of a token, where a router chooses."""
    top_k: int = 0
    groups: int = 1
    """Groups of these experts, and those that a token's lie in."""
    top_groups: int = 1
    block: str = ""
    """Block of the network that holds it, where its name does not say so."""
    kept: int = 0
    """Elements that it keeps for the backward pass, counted of networks of convolutions and of
    traced modules, as are ``masks``, bytes of what is no floating point."""
    masks: int = 0
    scores: int = 0
    """Those of attention's scores, counted of traced modules."""
    lookups: int = 0
    """Ids that a sample looks up in tables that are spread over the GPUs as experts are. They go to
    their rows' owners in one all-to-all, ``alltoall_elements`` of rows come back in another, and in
    the backward pass one takes their gradients."""
    maps: int = 0
    """Elements of its input and its output where it is a convolution."""
    winograd: bool = False
    """Whether it is a convolution that Winograd's algorithm can take: 3 x 3 at stride 1."""
    moved_forward: int = 0
    """Elements that kernels beside its products read and write: norms, activations, sums; counted
    of networks of convolutions and of traced modules."""
    moved_backward: int = 0
    forward_s: float = 0.0
    """Measured time of a sample; 0 where FLOPs say how long it takes."""
    backward_s: float = 0.0

    @property
    def parameters(self) -> int:
        """Number of learned elements, all experts included."""
        return sum(tensor.elements for tensor in self.tensors + self.expert_tensors)

    @property
    def dispatches_tokens(self) -> bool:
        """Whether its all-to-alls dispatch tokens to experts; those of tables exchange rows."""
        return self.alltoall_elements > 0 and not self.lookups

    def alltoall_bytes(self, element_bytes: int = 2) -> int:
        """Bytes that one sample sends through one all-to-all at ``element_bytes`` an element."""
        return self.alltoall_elements * element_bytes


RELU = (2, 3)
"""Elements moved for one of its output, forward and backward."""
BATCH_NORM = (3, 5)
SUM = 3
POOLED = 8
"""Bytes of the place of a maximum."""


def _weights(name: str, weight: int, bias: int) -> tuple[Tensor, ...]:
    tensors = [Tensor(f"{name}.weight", weight)]
    if bias:
        tensors.append(Tensor(f"{name}.bias", bias))
    return tuple(tensors)


def product(name: str, flops: int, tensors: tuple[Tensor, ...] = (), *,
            first: bool = False) -> Layer:
    """Matrix product of ``flops`` forward FLOPs; backward is twice that, or once if ``first``."""
    return Layer(name, tensors, flops, flops if first else 2 * flops)


def conv2d(name: str, channels: int, filters: int, kernel: int | tuple[int, int], out: int, *,
           stride: int = 1, bias: bool = True, first: bool = False, relu: bool = False,
           beside: bool = False) -> Layer:
    """Convolution from ``channels`` to ``filters`` maps of ``out`` x ``out``, with its ReLU.

    ``beside``: a layer before it has the same input, and keeps it.
    """
    high, wide = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    weight = channels * filters * high * wide
    layer = product(name, 2 * weight * out * out,
                    _weights(name, weight, filters if bias else 0), first=first)
    elements, given = relu * filters * out * out, channels * (stride * out)**2
    return replace(layer, maps=given + filters * out * out, kept=0 if beside else given,
                   winograd=high == wide == 3 and stride == 1,
                   moved_forward=RELU[0] * elements, moved_backward=RELU[1] * elements)


def pooled(layer: Layer, channels: int, side: int, out: int, *, beside: bool = False) -> Layer:
    """A layer with a max pool behind it, from maps of ``side`` x ``side`` to ``out`` x ``out``."""
    return replace(layer, kept=layer.kept + (not beside) * channels * side**2,
                   masks=layer.masks + POOLED * channels * out**2)


def linear(name: str, inputs: int, outputs: int, tokens: int = 1, *, bias: bool = True,
           first: bool = False) -> Layer:
    """Fully connected layer applied to ``tokens`` vectors of a sample."""
    tensors = _weights(name, inputs * outputs, outputs if bias else 0)
    return product(name, 2 * inputs * outputs * tokens, tensors, first=first)


def tied_linear(name: str, inputs: int, outputs: int, tokens: int) -> Layer:
    """Fully connected layer that borrows its weights, e.g. an output layer tied to an embedding."""
    return product(name, 2 * inputs * outputs * tokens)


def _norm(name: str, width: int, elements: int) -> Layer:
    # Backward: the gradients of scale and shift, and that of the input.
    return Layer(name, _weights(name, width, width), 2 * elements, 4 * elements)


def batchnorm(name: str, channels: int, out: int, *, relu: bool = True,
              added: bool = False) -> Layer:
    """Batch normalisation of ``channels`` maps of ``out`` x ``out``; scale and shift learned.

    Where ``added``, other maps are added before its ReLU.
    """
    elements = channels * out * out
    forward, backward = (norm + relu * unit + added * SUM
                         for norm, unit in zip(BATCH_NORM, RELU, strict=True))
    return replace(_norm(name, channels, elements), kept=elements,
                   moved_forward=forward * elements, moved_backward=backward * elements)


def layernorm(name: str, width: int, tokens: int) -> Layer:
    """Layer normalisation of ``tokens`` vectors of ``width`` elements."""
    return _norm(name, width, width * tokens)


def rmsnorm(name: str, width: int, tokens: int) -> Layer:
    """Root-mean-square normalisation (Zhang and Sennrich 2019): a scale and no shift."""
    return Layer(name, _weights(name, width, 0), 2 * width * tokens, 4 * width * tokens)


def embedding(name: str, rows: int, width: int) -> Layer:
    """Table of ``rows`` vectors; a look-up is no arithmetic, and its gradient is taken as dense."""
    return Layer(name, _weights(name, rows * width, 0))


def spread_tables(name: str, rows: int, width: int, lookups: int) -> Layer:
    """Tables of ``rows`` vectors over all GPUs; a sample looks up ``lookups`` of them."""
    return Layer(name, alltoall_elements=lookups * width, lookups=lookups,
                 expert_tensors=(Tensor(f"{name}.weight", rows * width),))


SCORES = ".scores"
"""Endings of the names of layers without parameters that multiply queries, keys and values."""


def attention(name: str, width: int, tokens: int, *, fused: bool = False,
              bias: bool = True) -> list[Layer]:
    """Multi-head self-attention (Vaswani et al. 2017) over ``tokens`` vectors of ``width``.

    The number of heads cancels out of every count. ``fused`` keeps query, key and value in one
    tensor, as GPT-2 does; otherwise each is a layer of its own, as in BERT.
    """
    if fused:
        inputs = [linear(f"{name}.qkv", width, 3 * width, tokens, bias=bias)]
    else:
        inputs = [linear(f"{name}.{part}", width, width, tokens, bias=bias)
                  for part in ("query", "key", "value")]
    # Scores (QK^T) and context (the weighted sum of V): two products of tokens^2 x width.
    scores = product(f"{name}.scores", 2 * 2 * tokens * tokens * width)
    return [*inputs, scores, linear(f"{name}.output", width, width, tokens, bias=bias)]


def relative_attention(name: str, width: int, tokens: int, memory: int) -> list[Layer]:
    """Attention with relative positions and a memory of earlier tokens (Dai et al. 2019, eq. 3.3).

    Queries, keys and values are projected for memory and tokens alike, as the authors' code does.
    The positions' projection (``positions``) runs once a batch, not once a sample, so only its
    parameters count. The learned biases u and v are per layer.
    """
    keys = memory + tokens
    # Content scores, position scores and the weighted sum of values.
    products = 3 * 2 * tokens * keys * width
    biases = (Tensor(f"{name}.u", width), Tensor(f"{name}.v", width))
    return [
        linear(f"{name}.qkv", width, 3 * width, keys, bias=False),
        Layer(f"{name}.positions", _weights(f"{name}.positions", width * width, 0)),
        product(f"{name}.scores", products, biases),
        linear(f"{name}.output", width, width, tokens, bias=False),
    ]


def ffn(name: str, width: int, inner: int, tokens: int) -> list[Layer]:
    """Two fully connected layers, ``width`` to ``inner`` and back."""
    return [linear(f"{name}.in", width, inner, tokens),
            linear(f"{name}.out", inner, width, tokens)]


def gated_ffn(name: str, width: int, inner: int, tokens: int) -> list[Layer]:
    """SwiGLU (Shazeer 2020): two layers side by side, whose product a third one takes back."""
    return [linear(f"{name}.gate", width, inner, tokens, bias=False),
            linear(f"{name}.up", width, inner, tokens, bias=False),
            linear(f"{name}.down", inner, width, tokens, bias=False)]


def moe_ffn(name: str, width: int, inner: int, tokens: int, *, experts: int, top_k: int = 1,
            capacity: float = 1.0) -> list[Layer]:
    """Mixture of ``experts`` feed-forward networks behind a router (Lepikhin et al. 2020, GShard).

    Each token goes to its ``top_k`` experts. An expert takes at most ``capacity * top_k * tokens /
    experts`` tokens of a sample and is padded up to that number, so arithmetic and all-to-all bytes
    are those of full buffers (Fedus et al. 2021, Switch Transformer, section 2.2).
    """
    slots = round(capacity * top_k * tokens)
    flops = 2 * 2 * width * inner * slots
    weights = tuple(Tensor(f"{name}.experts.{part}", elements * experts) for part, elements in (
        ("in.weight", width * inner), ("in.bias", inner),
        ("out.weight", inner * width), ("out.bias", width)))
    return [
        linear(f"{name}.router", width, experts, tokens, bias=False),
        Layer(f"{name}.experts", (), flops, 2 * flops, slots * width, weights,
              experts, top_k),
    ]
