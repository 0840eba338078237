"""LightCC's settings, and the algorithm that they choose for a tensor.

The variables and their defaults are those of Tencent's TACO Train documentation, but for
LIGHT_BITS, LIGHT_BITS_RING and LIGHT_SMALL_THRESHOLD; the precedence between them is published
nowhere and is ours. For a tensor or fused buffer of n bytes:

1. LIGHT_TOPK_ALLREDUCE and n >= LIGHT_TOPK_THRESHOLD: sparse, the share LIGHT_TOPK_RATIO of the
   elements with the largest magnitude, values as fp16 if LIGHT_TOPK_FP16; selected on the
   reduce-scattered shard if LIGHT_2D_ALLREDUCE, else on the whole tensor (flat);
2. else LIGHT_BITS (ours) below 32 and n > LIGHT_SMALL_THRESHOLD, of gradients of float32: values
   are sent in 8, 4 or 2 bits; between groups of LIGHT_INTRA_SIZE alone if LIGHT_2D_ALLREDUCE,
   around a ring of all ranks if LIGHT_BITS_RING (ours);
3. else LIGHT_2D_ALLREDUCE and n <= LIGHT_HIERARCHICAL_THRESHOLD: 2D in groups of LIGHT_INTRA_SIZE;
4. else n <= LIGHT_SMALL_THRESHOLD (ours): recursive doubling up to 4 KiB, in the fewest steps, and
   recursive halving-doubling above, in twice as many that carry less;
5. else a ring over all ranks.

Pure functions of their arguments: the simulator and the real collectives ask the same ones.

>>> settings = LightSettings.from_env({"LIGHT_2D_ALLREDUCE": 1, "LIGHT_TOPK_ALLREDUCE": "1"})
>>> settings.choose(4 << 20).algorithm
'sparse-2d'
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from harp.collectives.few_bits_plan import BITS
from harp.nearest import nearest_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Algorithm = Literal["sparse-2d", "sparse-flat", "few-bits-2d", "few-bits-ring",
                    "few-bits", "2d", "recursive-doubling", "halving-doubling", "ring"]
Raw = str | int | float

WHOLE_BITS = 32
"""LIGHT_BITS where values are not quantised."""
INDEX_BYTES = 4
"""A sparse element is sent with an int32 index."""
SPARSE_MOST_BYTES = (1 << 32) - 4
"""The sizes of a piece have 32 bits (cnet/lightcc/mover.h), and top-k selects in one."""
DOUBLING_BYTES = 4096
"""The largest tensor that goes whole in every step. MPICH's limit is 2048 (Thakur, Rabenseifner and
Gropp 2005, whose links have 0.3 to 3 Gb/s); 4096 take 33 us at 1 Gb/s, about a step's latency."""


@dataclass(frozen=True)
class Choice:
    """The algorithm that averages one tensor."""

    algorithm: Algorithm
    intra_size: int = 1
    """Ranks per group, for ``2d``, ``few-bits-2d`` and ``sparse-2d``."""
    ratio: Fraction = Fraction(1)
    """Share of the elements that is sent."""
    fp16: bool = False
    """Whether the values of a sparse message are sent as fp16."""
    bits: int = 32
    """Bits of a value, for ``few-bits``, ``few-bits-2d`` and ``few-bits-ring``."""
    why: str = ""
    """The setting that decided, for people."""

    @property
    def sparse(self) -> bool:
        """Whether (value, index) pairs are sent in place of the whole tensor."""
        return self.algorithm in {"sparse-2d", "sparse-flat"}

    @property
    def pair_bytes(self) -> int:
        """Bytes of one (value, index) pair of a sparse message."""
        return INDEX_BYTES + (2 if self.fp16 else 4)

    def selected(self, elements: int) -> int:
        """Elements that are sent of the ``elements`` examined: max(1, floor(ratio * elements)).

        For ``sparse-2d`` what is examined is the shard of one rank, not the tensor.
        """
        return max(1, int(self.ratio * elements))


@dataclass(frozen=True)
class LightSettings:
    """The LIGHT_* variables; see the module for what they decide."""

    two_d: bool = False
    """LIGHT_2D_ALLREDUCE"""
    intra_size: int = 8
    """LIGHT_INTRA_SIZE: ranks per group, as a rule the GPUs of a host."""
    hierarchical_threshold_bytes: int = 1 << 30
    """LIGHT_HIERARCHICAL_THRESHOLD: the largest tensor that takes the dense 2D path."""
    topk: bool = False
    """LIGHT_TOPK_ALLREDUCE"""
    topk_ratio: float = 0.01
    """LIGHT_TOPK_RATIO: share of the elements that is sent, above 0 and up to 1."""
    topk_threshold_bytes: int = 1 << 20
    """LIGHT_TOPK_THRESHOLD: the smallest tensor that is sent sparsely."""
    topk_fp16: bool = False
    """LIGHT_TOPK_FP16: send the selected values as fp16."""
    bits: int = 32
    """LIGHT_BITS: bits of a value of a gradient on the wire: 8, 4 or 2; 32: whole float32."""
    bits_ring: bool = False
    """LIGHT_BITS_RING: send few bits around a ring, in place of each rank to each other one."""
    small_bytes: int = 16 << 10
    """LIGHT_SMALL_THRESHOLD: the largest tensor for which steps count more than bytes."""

    def __post_init__(self) -> None:
        """Refuse values that no variable could have."""
        for variable, (field, parse) in _VARIABLES.items():
            parse(variable, getattr(self, field))
        if self.bits_ring and self.two_d:
            raise ValueError("LIGHT_BITS_RING and LIGHT_2D_ALLREDUCE are both 1; few bits go "
                             "around a ring of single ranks, or between groups of them.")

    @classmethod
    def from_env(cls, env: Mapping[str, Raw]) -> LightSettings:
        """Read the LIGHT_* variables of ``env``, e.g. ``os.environ``; other names are ignored.

        A `ValueError` in one sentence names an unknown LIGHT_* name or a value out of range.
        """
        given: dict[str, Any] = {}
        for variable in (name for name in env if name.startswith("LIGHT_")):
            if variable not in _VARIABLES:
                near = nearest_name(variable, _VARIABLES, 0)
                raise ValueError(f"unknown setting {variable}; did you mean {near}? "
                                 f"Allowed are {', '.join(_VARIABLES)}.")
            field, parse = _VARIABLES[variable]
            given[field] = parse(variable, env[variable])
        return cls(**given)

    def value(self, variable: str) -> bool | int | float:
        """Give what a variable is set to."""
        found: bool | int | float = getattr(self, _VARIABLES[variable][0])
        return int(found) if isinstance(found, bool) else found

    def choose(self, nbytes: int, *, sparse: bool = True) -> Choice:
        """Algorithm for a tensor or fused buffer of ``nbytes`` bytes that may be sparse."""
        if nbytes < 0:
            raise ValueError(f"a tensor cannot have {nbytes} bytes; allowed is 0 or more.")
        if sparse and self.topk and self.topk_threshold_bytes <= nbytes <= SPARSE_MOST_BYTES:
            # The decimal that the user wrote, not the float nearest to it: 0.29 of 100 is 29.
            ratio = Fraction(repr(self.topk_ratio))
            why = f"LIGHT_TOPK_ALLREDUCE is 1, and LIGHT_TOPK_THRESHOLD {self.topk_threshold_bytes}"
            if self.two_d:
                return Choice("sparse-2d", self.intra_size, ratio, self.topk_fp16,
                              why=f"{why}; LIGHT_2D_ALLREDUCE is 1")
            return Choice("sparse-flat", ratio=ratio, fp16=self.topk_fp16, why=why)
        if sparse and self.bits < WHOLE_BITS and nbytes > self.small_bytes:
            return self._few_bits()
        if self.two_d and nbytes <= self.hierarchical_threshold_bytes:
            return Choice("2d", self.intra_size, why="LIGHT_2D_ALLREDUCE is 1")
        if nbytes <= self.small_bytes:
            return Choice("recursive-doubling" if nbytes <= DOUBLING_BYTES else "halving-doubling",
                          why=f"at most LIGHT_SMALL_THRESHOLD, {self.small_bytes} B")
        return Choice("ring", why=self._why_no_other(nbytes, sparse=sparse))

    def _few_bits(self) -> Choice:
        why = f"LIGHT_BITS is {self.bits}"
        if self.two_d:
            return Choice("few-bits-2d", self.intra_size, bits=self.bits,
                          why=f"{why}; LIGHT_2D_ALLREDUCE is 1")
        if self.bits_ring:
            return Choice("few-bits-ring", bits=self.bits, why=f"{why}; LIGHT_BITS_RING is 1")
        return Choice("few-bits", bits=self.bits, why=why)

    def _why_no_other(self, nbytes: int, *, sparse: bool) -> str:
        reasons = [f"more than LIGHT_SMALL_THRESHOLD, {self.small_bytes} B"]
        if self.two_d:
            reasons.append(f"more than LIGHT_HIERARCHICAL_THRESHOLD, "
                           f"{self.hierarchical_threshold_bytes} B")
        if self.topk:
            reasons.append(self._why_not_sparse(nbytes) if sparse else "all of it must arrive")
        return "; ".join(reasons)

    def _why_not_sparse(self, nbytes: int) -> str:
        if nbytes > SPARSE_MOST_BYTES:
            return f"more than top-k takes, {SPARSE_MOST_BYTES} B"
        return f"less than LIGHT_TOPK_THRESHOLD, {self.topk_threshold_bytes} B"


def _refusal(variable: str, found: object, allowed: str) -> ValueError:
    return ValueError(f"{variable} is {str(found)!r}; allowed is {allowed}.")


def _parse_number(variable: str, raw: Raw, allowed: str) -> float:
    try:
        return float(raw)
    except ValueError:
        raise _refusal(variable, raw, allowed) from None


def _parse_flag(variable: str, raw: Raw) -> bool:
    number = _parse_number(variable, raw, "0 or 1")
    if number not in {0, 1}:
        raise _refusal(variable, raw, "0 or 1")
    return bool(number)


def _count_parser(least: int, allowed: str) -> Callable[[str, Raw], int]:
    def parse(variable: str, raw: Raw) -> int:
        number = _parse_number(variable, raw, allowed)
        if not number.is_integer() or number < least:
            raise _refusal(variable, raw, allowed)
        return int(number)
    return parse


def _parse_ratio(variable: str, raw: Raw) -> float:
    allowed = "a share above 0 and up to 1, e.g. 0.01"
    number = _parse_number(variable, raw, allowed)
    if not 0 < number <= 1:
        raise _refusal(variable, raw, allowed)
    return number


def _parse_bits(variable: str, raw: Raw) -> int:
    number = _parse_number(variable, raw, "8, 4 or 2, or 32 for float32")
    if number not in (*BITS, WHOLE_BITS):
        raise _refusal(variable, raw, "8, 4 or 2, or 32 for float32")
    return int(number)


_parse_bytes = _count_parser(0, "a whole number of bytes, 0 or more")

_VARIABLES: dict[str, tuple[str, Callable[[str, Raw], bool | int | float]]] = {
    "LIGHT_2D_ALLREDUCE": ("two_d", _parse_flag),
    "LIGHT_INTRA_SIZE": ("intra_size", _count_parser(1, "a whole number of ranks, 1 or more")),
    "LIGHT_HIERARCHICAL_THRESHOLD": ("hierarchical_threshold_bytes", _parse_bytes),
    "LIGHT_TOPK_ALLREDUCE": ("topk", _parse_flag),
    "LIGHT_TOPK_RATIO": ("topk_ratio", _parse_ratio),
    "LIGHT_TOPK_THRESHOLD": ("topk_threshold_bytes", _parse_bytes),
    "LIGHT_TOPK_FP16": ("topk_fp16", _parse_flag),
    "LIGHT_BITS": ("bits", _parse_bits),
    "LIGHT_BITS_RING": ("bits_ring", _parse_flag),
    "LIGHT_SMALL_THRESHOLD": ("small_bytes", _parse_bytes),
}

NAMES = tuple(_VARIABLES)
"""The variables' names, in the order of the documentation, and then ours."""
