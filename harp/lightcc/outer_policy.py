"""Policies of rare synchronisation: which elements replicas send, when, and in how many bytes.

The pure half of `harp.lightcc.outer`, which the simulator asks as well. A *round* is ``every``
inner steps. Parameters are divided into *fragments*, each of them sent once a round: fragment i of
P after (i + 1) * every / P steps of it, so that the last one ends the round. A sent fragment is
mixed in ``delay`` steps later, and travels while these compute.

| method | sent of a fragment | fragments, delay | source |
|---|---|---|---|
| local-sgd | all of the difference, fp32 | 1, 0 | Stich, ICLR 2019 |
| diloco | the same, in ``bits`` bits | 1, 0 | Douillard et al., arXiv 2311.08105 |
| streaming | the same, in ``bits`` bits | any | Douillard et al., arXiv 2501.18512 |
| sparseloco | ``keep`` of each ``chunk``, in ``bits`` bits | any | Sarfi et al., arXiv 2508.15706 |

>>> policy = OuterPolicy("streaming", every=30, fragments=3, delay=2)
>>> [step for step in range(1, 61) if policy.begins(step)]
[10, 20, 30, 40, 50, 60]
>>> policy.begins(20), policy.ends(22)
((1,), (1,))
>>> OuterPolicy("sparseloco", every=30).message_bytes(4096)
116
>>> OuterPolicy("diloco", every=100, bits=8).message_bytes(4096)
4160
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Literal, get_args

from harp.collectives import few_bits_plan
from harp.nearest import nearest_name

if TYPE_CHECKING:
    from collections.abc import Sequence

Method = Literal["local-sgd", "diloco", "streaming", "sparseloco"]
ExchangeAlgorithm = Literal["direct", "ring"]
FP32_BITS = 32
SCALE_BYTES = 4
"""Of each chunk of a sparse message: the largest magnitude, in fp32."""
BITS: dict[Method, tuple[int, ...]] = {
    "local-sgd": (FP32_BITS,), "diloco": (FP32_BITS, *few_bits_plan.BITS),
    "streaming": (FP32_BITS, *few_bits_plan.BITS), "sparseloco": (2, 4, 8, FP32_BITS)}
"""Bits that a value may have, first those where not given; 32: as it is."""
MOST_CHUNK = 1 << 16


@dataclass(frozen=True)
class OuterPolicy:
    """The schedule and the messages; ValueError, in one sentence, for values that cannot be."""

    method: Method
    every: int
    """Inner steps of a round."""
    fragments: int = 1
    delay: int = 0
    """Inner steps from the sending of a fragment to its mixing in."""
    keep: int = 64
    """Values of each chunk that SparseLoCo sends: 64 of 4096 are 1.6 %; the paper has 1 to 3."""
    chunk: int = 4096
    """Elements among which it selects them; 4096 need indexes of 12 bits."""
    bits: int = 0
    """Bits of a value that is sent; 0: the first of `BITS`."""
    exchange: ExchangeAlgorithm = "direct"
    """Algorithm of a sum in few bits: from each host to each other one, or around a ring of them.
    Whole sums go around a ring, and sparse messages to all, whatever it is."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        _check_name("method", self.method, get_args(Method))
        _check_name("exchange", self.exchange, get_args(ExchangeAlgorithm))
        _check("every", self.every, 1, None)
        _check("fragments", self.fragments, 1, self.every)
        _check("delay", self.delay, 0, self.every - 1)
        if self.sparse:
            _check("chunk", self.chunk, 2, MOST_CHUNK)
            _check("keep", self.keep, 1, self.chunk)
        allowed = BITS[self.method]
        if not self.bits:
            object.__setattr__(self, "bits", allowed[0])
        if self.bits not in allowed:
            raise ValueError(f"bits is {self.bits}; allowed are "
                             f"{', '.join(map(str, sorted(allowed)))}")
        if self.method in {"local-sgd", "diloco"} and (self.fragments, self.delay) != (1, 0):
            raise ValueError(f"{self.method} sends all at once and waits for it; fragments and "
                             "delay are of streaming and sparseloco")

    @property
    def sparse(self) -> bool:
        """Whether a few values are sent, to all, in place of a sum."""
        return self.method == "sparseloco"

    @property
    def has_momentum(self) -> bool:
        """Whether the outer optimizer keeps a momentum."""
        return self.method in {"diloco", "streaming"}

    @property
    def keeps_error(self) -> bool:
        """Whether a replica keeps what it did not send, and sends it later."""
        return self.sparse or self.bits < FP32_BITS

    def begins(self, step: int) -> tuple[int, ...]:
        """Give the fragments that are sent after inner step ``step``, counted from 1."""
        return tuple(number for number in range(self.fragments)
                     if (step - self._offset(number)) % self.every == 0) if step > 0 else ()

    def ends(self, step: int) -> tuple[int, ...]:
        """Give the fragments that are mixed in after inner step ``step``, counted from 1."""
        return self.begins(step - self.delay)

    def _offset(self, fragment: int) -> int:
        return (fragment + 1) * self.every // self.fragments

    # ---- messages

    @property
    def index_bits(self) -> int:
        """Bits of the place of a value in its chunk."""
        return (self.chunk - 1).bit_length()

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk's sparse message."""
        scale = SCALE_BYTES if self.bits < FP32_BITS else 0
        return scale + -(-self.keep * (self.index_bits + self.bits) // 8)

    def message_bytes(self, elements: int) -> int:
        """Bytes that a replica contributes for ``elements`` elements of a fragment."""
        if self.sparse:
            return -(-elements // self.chunk) * self.chunk_bytes
        if self.bits < FP32_BITS:
            return int(few_bits_plan.message_bytes(elements, self.bits))
        return elements * FP32_BITS // 8

    def state_bytes(self, elements: int) -> int:
        """Bytes that a replica keeps for ``elements`` elements from one round to the next.

        The anchor, the momentum and what was not sent, in fp32, as far as there are such.
        """
        return elements * FP32_BITS // 8 * (1 + self.has_momentum + self.keeps_error)

    @property
    def plan(self) -> str:
        """The collective between replicas: a sum, whole or in few bits, or all messages to all."""
        if self.sparse:
            return "allgather"
        if self.bits == FP32_BITS:
            return "ring"
        return "ring-few-bits" if self.exchange == "ring" else "few-bits"


def faster_exchange(message_bytes: float, sites: Sequence[int], rate_bps: float,
                    delay_s: float) -> ExchangeAlgorithm:
    """Choose the algorithm of a sum in few bits by the lines between sites, which hosts share.

    Of N hosts each pair of hosts at two sites exchanges an N-th of a message twice, so that a line
    between sites of a and b hosts has 2ab of them each way, all at once. A ring has one on it in
    each of its 2(N - 1) hops, each of them with the delay.

    >>> faster_exchange(10.2e9, [7, 4, 3], 500e6, 0.08)   # INTELLECT-1's, of bytes
    'ring'
    >>> faster_exchange(10.2e9, [1, 1, 1], 500e6, 0.08)
    'direct'
    >>> faster_exchange(100e3, [7, 4, 3], 500e6, 0.08)
    'direct'

    Args:
        message_bytes: of an encoded vector, all that a host sends to one other at a time.
        sites: hosts of each.
        rate_bps: of the slowest line between two sites.
        delay_s: of one way on it.

    """
    if min(sites, default=0) < 1 or rate_bps <= 0:
        raise ValueError(f"sites are {list(sites)} and the rate is {rate_bps:g} b/s; allowed are "
                         "sites of 1 host or more, and a rate above 0")
    hosts, (most, second) = sum(sites), (*sorted(sites, reverse=True), 0)[:2]
    part_s = 8 * message_bytes / hosts / rate_bps
    direct_s = 2 * (delay_s + most * second * part_s)
    return "ring" if 2 * (hosts - 1) * (delay_s + part_s) < direct_s else "direct"


def _check_name(what: str, found: str, allowed: tuple[str, ...]) -> None:
    if found not in allowed:
        raise ValueError(f"{what} is {found!r}; did you mean {nearest_name(found, allowed, 0)}? "
                         f"Allowed are {', '.join(allowed)}")


def _check(name: str, found: int, least: int, most: int | None) -> None:
    if not isinstance(found, Integral):
        raise ValueError(f"{name} is {found!r}; allowed is a whole number")
    if found < least or (most is not None and found > most):
        allowed = f"{least} or more" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} is {found}; allowed is {allowed}")


def split(sizes: Sequence[int], fragments: int) -> list[range]:
    """Divide parameters, in their order, into fragments of about as many elements.

    A parameter is never divided, so that a fragment may be empty where one is large.

    >>> split([3, 1, 4, 4], 3)
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    whole, before, counts = sum(sizes), 0, [0] * fragments
    for size in sizes:
        middle = before + size / 2
        counts[min(int(middle * fragments / max(whole, 1)), fragments - 1)] += 1
        before += size
    starts = [sum(counts[:number]) for number in range(fragments)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
