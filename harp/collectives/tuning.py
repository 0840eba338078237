"""Tuning tables: NCCL's choice for each collective and size, in the file that ``HARP_TUNER`` names.

The plugin's tuner reads it in C (``cnet/nccl/tuner_table.h``), the simulator here, and
``sim.tune`` writes it. `docs/use/tuning.md` has the format, ``harp-tuning-1``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from harp.reading import FileError, Node, check_format, parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORMAT = "harp-tuning-1"
COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
CHANNELS_MOST = 64
"""NCCL's own limit (MAXCHANNELS)."""
RANKS_MOST = 1 << 20


class TuningError(ValueError):
    """A file is no table; the message is one sentence."""


@dataclass(frozen=True)
class Row:
    """The choice for sizes from ``min_bytes`` to ``max_bytes``, both included."""

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int = 0
    """0 leaves their number to NCCL."""
    gain: float | None = None
    """Speedup over NCCL's own choice, for the reader."""

    def __post_init__(self) -> None:
        for name, allowed in (("collective", COLLECTIVES), ("algorithm", ALGORITHMS),
                              ("protocol", PROTOCOLS)):
            if getattr(self, name) not in allowed:
                raise TuningError(f"{name} is {getattr(self, name)!r}: allowed are "
                                  f"{', '.join(allowed)}")
        for name in ("min_bytes", "max_bytes", "channels"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise TuningError(f"{name} is {value!r}: allowed are whole numbers from 0")
        if self.min_bytes > self.max_bytes:
            raise TuningError(f"min_bytes {self.min_bytes} is above max_bytes {self.max_bytes}")
        if self.channels > CHANNELS_MOST:
            raise TuningError(f"channels is {self.channels}: allowed are 0 to {CHANNELS_MOST}")


@dataclass(frozen=True)
class Communicator:
    """The rows for communicators of this many ranks and hosts."""

    ranks: int
    nodes: int
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        if not all(type(count) is int and count > 0 for count in (self.ranks, self.nodes)):
            raise TuningError("ranks and nodes of a communicator are whole numbers above 0")


@dataclass(frozen=True)
class Tuning:
    """A file: rows for communicators, and where they come from."""

    communicators: tuple[Communicator, ...]
    source: Mapping[str, Any] = field(default_factory=lambda: {"kind": "by hand"})

    def find(self, ranks: int, nodes: int, collective: str, nbytes: int) -> Iterator[Row]:
        """The matching rows; the first with an algorithm and protocol that NCCL has counts."""
        return (row for one in self.communicators if (one.ranks, one.nodes) == (ranks, nodes)
                for row in one.rows if row.collective == collective
                and row.min_bytes <= nbytes <= row.max_bytes)

    def has(self, ranks: int, nodes: int) -> bool:
        """Whether it knows communicators of this kind."""
        return any((one.ranks, one.nodes) == (ranks, nodes) for one in self.communicators)

    def to_json(self) -> str:
        """Write it as JSON, a line for each row."""
        head = {"format": FORMAT, "source": dict(self.source)}
        parts = []
        for one in self.communicators:
            lines = ",\n   ".join(json.dumps({name: value for name, value in asdict(row).items()
                                              if value is not None}) for row in one.rows)
            parts.append(f'{{"ranks": {one.ranks}, "nodes": {one.nodes}, "rows": [\n   {lines}]}}')
        return json.dumps(head)[:-1] + ',\n "communicators": [' + ",\n  ".join(parts) + "]}\n"

    @classmethod
    def from_json(cls, text: str) -> Tuning:
        """Read a file; TuningError, one sentence, if it is not a tuning table."""
        try:
            return cls.from_dict(parse(text).plain())
        except FileError as error:
            raise TuningError(str(error)) from error

    @classmethod
    def from_dict(cls, data: Any) -> Tuning:
        """The same of what JSON has become."""
        node = Node(data, "")
        try:
            check_format(node, FORMAT)
            source = node.get("source")
            return cls(tuple(_communicator(one) for one in node["communicators"].each()),
                       {name: value.plain() for name, value in source.items()} if source else {})
        except FileError as error:
            raise TuningError(str(error)) from error


def _communicator(node: Node) -> Communicator:
    return Communicator(node["ranks"].whole(1, RANKS_MOST), node["nodes"].whole(1, RANKS_MOST),
                        tuple(_row(row) for row in node["rows"].each()))


def _row(node: Node) -> Row:
    channels, gain = node.get("channels"), node.get("gain")
    return Row(node["collective"].one_of(*COLLECTIVES), node["min_bytes"].whole(0, 1 << 63),
               node["max_bytes"].whole(0, 1 << 63), node["algorithm"].one_of(*ALGORITHMS),
               node["protocol"].one_of(*PROTOCOLS),
               channels.whole(0, CHANNELS_MOST) if channels else 0,
               gain.number() if gain and not gain.is_none() else None)
