"""Quantised allreduce: float32 values are sent between hosts in 8, 4 or 2 bits each.

With g ranks on each of M hosts a vector is cut into a shard for each rank of a host, and a shard
into a part for each host:

1. within a host each rank adds up its own shard, in float32;
2. it encodes the parts, sends each to the rank of that host with the same shard, and adds up what
   comes for its own part;
3. it encodes that sum, and sends it to the same ranks;
4. within a host each rank sends the encoded sums of its shard to the others, and decodes all.

So a host sends 2 (M - 1) / M of an encoded vector, as a ring over M hosts does. An encoded message
has a scale for each `CHUNK` values (`cnet/lightcc/few_bits.h`). Rounding errors are kept by the
rank that encodes (error feedback), which is not a plan's matter. `harp.lightcc.few_bits` carries it
out, by the same parts.

Sources: Alistarh et al., "QSGD", NeurIPS 2017 (arXiv 1610.02132) for chunks with a scale; Wang et
al., "ZeRO++: Extremely efficient collective communication for giant model training" (arXiv
2306.10209) for one exchange whose messages are decoded and then added up, where a ring would encode
anew at each rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.collectives.collective_plan import LocalStage, Plan, Stage
from harp.collectives.ir import Buffer, LocalWork, Op, Phase, Transfers, local_phase
from harp.collectives.layout import Groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harp.collectives.ir import Index, Ints
    from harp.collectives.request import Request

BITS = (8, 4, 2)
CHUNK = 256
"""HARP_BITS_CHUNK of cnet/lightcc/few_bits.h, held equal by a test."""
SCALE_BYTES = FLOAT_BYTES = 4


def message_bytes(elements: Index, bits: int) -> Ints:
    """Return the bytes of a message of `elements` values."""
    chunks, rest = np.divmod(np.asarray(elements, np.int64), CHUNK)
    last = np.where(rest > 0, SCALE_BYTES + -(-rest * bits // 8), 0)
    return np.asarray(chunks * (SCALE_BYTES + CHUNK * bits // 8) + last)


@dataclass(frozen=True)
class Parts:
    """The parts of a vector: whole chunks, but for the last one that has any."""

    elements: int
    hosts: int
    group: int
    """Ranks of a host, hence shards."""
    bits: int

    @property
    def room(self) -> int:
        """Elements of a part that is full."""
        return -(-self.elements // (self.hosts * self.group * CHUNK)) * CHUNK

    def start(self, shard: Index, host: Index) -> Ints:
        """First element of a part; part ``hosts`` of a shard is the end of the shard."""
        at = (np.asarray(shard, np.int64) * self.hosts + host) * self.room
        return np.asarray(np.minimum(at, self.elements))

    def length(self, shard: Index, host: Index) -> Ints:
        """Elements of a part."""
        return self.start(shard, np.asarray(host) + 1) - self.start(shard, host)

    def message(self, shard: Index, host: Index) -> Ints:
        """Bytes of an encoded part."""
        return message_bytes(self.length(shard, host), self.bits)


class Move(NamedTuple):
    """From where to where a message goes, and its bytes."""

    src_buffer: Buffer
    src_offset: Ints
    dst_buffer: Buffer
    dst_offset: Ints
    length: Ints


@dataclass(frozen=True, eq=False)
class Trade(Stage):
    """All members of a group send to all others at once: one step."""

    label: str
    groups: Groups
    op: Op
    move: Callable[[Ints, Ints, Ints], Move]
    """A transfer in a group from one position to another one."""

    @property
    def steps(self) -> int:
        """One, where there is anybody to send to."""
        return min(self.groups.size - 1, 1)

    def _rows(self, group: Ints, position: Ints, ahead: Ints) -> Transfers:
        """Send from ``position`` to the one ``ahead`` places further on."""
        to = (position + ahead) % self.groups.size
        members = self.groups.members
        return Transfers.build(step=0, src=members[group, position], dst=members[group, to],
                               op=self.op, **self.move(group, position, to)._asdict())

    def step(self, index: int) -> Transfers:  # noqa: ARG002  (there is one step)
        """Each rank starts with its right neighbour."""
        groups, size = self.groups.members.shape
        return self._rows(*np.ix_(np.arange(groups), np.arange(size), np.arange(1, size)))

    def sends(self, rank: int) -> Transfers:
        """One message to each other member."""
        return self._rows(*self.groups.find(rank), np.arange(1, self.groups.size))

    def receives(self, rank: int) -> Transfers:
        """One message from each other member."""
        (group, position), ahead = self.groups.find(rank), np.arange(1, self.groups.size)
        return self._rows(group, (position - ahead) % self.groups.size, ahead)

    def phases(self) -> Iterator[Phase]:
        """One phase of independent edges."""
        rows = self.step(0)
        yield Phase(self.label, rows.src, rows.dst, rows.length, 1,
                    np.arange(len(rows), dtype=np.int32))


class Coding(NamedTuple):
    """A range of DATA that is encoded to a message, or decoded from ``slots`` of them."""

    data: int
    data_bytes: int
    message: int
    message_bytes: int
    slots: int = 1


@dataclass(frozen=True, eq=False)
class Code(LocalStage):
    """Encoding or decoding: one step without messages."""

    label: str
    op: Op
    hosts: Groups
    codings: Callable[[int, int], Iterator[Coding]]
    """Of the rank with a number of host and shard, in order."""
    elements: Callable[[Ints, Ints], Ints]
    """Values that a rank encodes or adds."""

    def local_work(self, rank: int) -> Iterator[LocalWork]:
        """One row for each range that has anything."""
        host, shard = map(int, self.hosts.find(rank))
        for at in self.codings(host, shard):
            data = (Buffer.DATA, at.data, at.data_bytes)
            message = (Buffer.CODES, at.message, at.message_bytes)
            if at.data_bytes:
                ends = (*data, *message) if self.op == Op.ENCODE else (*message, *data)
                yield LocalWork(0, rank, self.op, *ends, at.slots)

    def phases(self) -> Iterator[Phase]:
        """One phase without edges."""
        hosts, group = self.hosts.members.shape
        elements = np.empty(hosts * group, np.int64)
        elements[self.hosts.members] = self.elements(*np.ix_(np.arange(hosts), np.arange(group)))
        yield local_phase(self.label, self.op, elements)


@dataclass(frozen=True)
class Places:
    """Places of a rank's messages in CODES: those to send, those that came, and the sums."""

    parts: Parts
    unit_bytes: int

    @property
    def slot(self) -> int:
        """Room of a message."""
        return int(message_bytes(self.parts.room, self.parts.bits))

    def came(self, shard: Index, host: Index, source: Index) -> Ints:
        """From host ``source``, for the part of ``host``: side by side, to be added up.

        Parts that are not full have a place of their own, since theirs lie closer.
        """
        nbytes = self.parts.message(shard, host)
        first = np.where(nbytes == self.slot, 1, 2) * self.parts.hosts * self.slot
        return np.asarray(first + source * nbytes)

    def sums(self, shard: Index, host: Index) -> Ints:
        """One behind the other: parts are full but for the last that has any."""
        parts = self.parts
        before = message_bytes(parts.start(shard, host), parts.bits)
        return np.asarray(3 * parts.hosts * self.slot + before)

    @property
    def nbytes(self) -> int:
        """All of it."""
        return int(self.sums(self.parts.group, 0))

    # Moves between ranks

    def shards(self, host: Ints, shard: Ints, other: Ints) -> Move:  # noqa: ARG002  (all alike)
        """Within a host: its shard to each rank."""
        start = self.unit_bytes * self.parts.start(other, 0)
        return Move(Buffer.DATA, start, Buffer.DATA, start,
                    self.unit_bytes * self.parts.start(other, self.parts.hosts) - start)

    def to_hosts(self, shard: Ints, host: Ints, other: Ints) -> Move:
        """Between hosts: its part to each."""
        return Move(Buffer.CODES, np.asarray(other * self.slot), Buffer.CODES,
                    self.came(shard, other, host), self.parts.message(shard, other))

    # Those whose receivers all get the same pass over some of what describes a move.

    def sum_to_hosts(self, shard: Ints, host: Ints, other: Ints) -> Move:  # noqa: ARG002
        """Between hosts: the sum of its own part to all."""
        at = self.sums(shard, host)
        return Move(Buffer.CODES, at, Buffer.CODES, at, self.parts.message(shard, host))

    def sums_within(self, host: Ints, shard: Ints, other: Ints) -> Move:  # noqa: ARG002
        """Within a host: all sums of its own shard to all."""
        at = self.sums(shard, 0)
        return Move(Buffer.CODES, at, Buffer.CODES, at,
                    self.sums(shard, self.parts.hosts) - at)

    # Ranges that a rank encodes or decodes

    def _coding(self, shard: int, host: int, message: Ints, slots: int = 1) -> Coding:
        parts, unit = self.parts, self.unit_bytes
        return Coding(int(unit * parts.start(shard, host)), int(unit * parts.length(shard, host)),
                      int(message), slots * int(parts.message(shard, host)), slots)

    def own_parts(self, host: int, shard: int) -> Iterator[Coding]:
        """Of the rank's shard, a part for each host; what is for itself has come."""
        for other in range(self.parts.hosts):
            at = self.came(shard, host, host) if other == host else np.asarray(other * self.slot)
            yield self._coding(shard, other, at)

    def what_came(self, host: int, shard: int) -> Iterator[Coding]:
        """All hosts' messages for the rank's part."""
        yield self._coding(shard, host, self.came(shard, host, 0), self.parts.hosts)

    def own_sum(self, host: int, shard: int) -> Iterator[Coding]:
        """The sum of the rank's part."""
        yield self._coding(shard, host, self.sums(shard, host))

    def all_sums(self, host: int, shard: int) -> Iterator[Coding]:
        """The sums of all parts."""
        del host, shard
        full = -(-self.parts.elements // max(self.parts.room, 1))  # the others have nothing
        for number in range(full):
            one, other = divmod(number, self.parts.hosts)
            yield self._coding(one, other, self.sums(one, other))


def flat(request: Request) -> Plan:
    """Quantised allreduce in which each rank is a host.

    Time encode(n) + (N-1)·(alpha + q/(N·B)) + add(n) + encode(n/N) + (N-1)·(alpha + q/(N·B)) +
    add(n), with q bytes of an encoded vector.
    """
    return _plan("few-bits", request, Groups(request.placement()[:, None]))


def sharded(request: Request) -> Plan:
    """Quantised allreduce: float32 within hosts, few bits between them.

    (g-1)·(alpha1 + S/(g·B1)) + 2(M-1)·(alpha2 + q/(M·B2)) + (g-1)·(alpha1 + q/(g·B1)), and the
    encoding and adding of `flat`.

    Raises:
        ValueError: ``group`` is missing or does not divide the ranks.

    """
    return _plan("2d-few-bits", request, Groups(request.hosts("2d-few-bits")))


def require_few_bits(request: Request) -> None:
    """Raise ValueError where a vector cannot be encoded as asked."""
    if request.bits not in BITS:
        raise ValueError(f"bits is {request.bits}; allowed are {', '.join(map(str, BITS))}")
    if request.unit_bytes != FLOAT_BYTES:
        raise ValueError(f"unit_bytes is {request.unit_bytes}; few bits are of float32, "
                         f"{FLOAT_BYTES}")


def _plan(name: str, request: Request, hosts: Groups) -> Plan:
    require_few_bits(request)
    machines, group = hosts.members.shape
    parts = Parts(request.nbytes // request.unit_bytes, machines, group, request.bits)
    places, between = Places(parts, request.unit_bytes), Groups(hosts.members.T)

    def of_shard(host: Ints, shard: Ints) -> Ints:
        return parts.start(shard, machines) - parts.start(shard, 0) + 0 * host

    def of_part(host: Ints, shard: Ints) -> Ints:
        return parts.length(shard, host)

    stages: tuple[Stage, ...] = (
        Trade("intra reduce-scatter", hosts, Op.REDUCE, places.shards),
        Code("encode parts", Op.ENCODE, hosts, places.own_parts, of_shard),
        Trade("inter parts", between, Op.COPY, places.to_hosts),
        Code("add parts", Op.DECODE, hosts, places.what_came,
             lambda host, shard: machines * of_part(host, shard)),
        Code("encode sums", Op.ENCODE, hosts, places.own_sum, of_part),
        Trade("inter sums", between, Op.COPY, places.sum_to_hosts),
        Trade("intra sums", hosts, Op.COPY, places.sums_within),
        Code("decode sums", Op.DECODE, hosts, places.all_sums,
             lambda host, shard: parts.elements + 0 * (host + shard)))
    return Plan(name, "allreduce", request.ranks, request.nbytes, request.unit_bytes, stages,
                {Buffer.DATA: request.nbytes, Buffer.CODES: places.nbytes}, bits=request.bits)
