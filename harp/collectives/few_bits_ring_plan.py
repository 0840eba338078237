"""Quantised allreduce around a ring: each host sends to one other host alone.

N hosts of one rank, and a vector cut into a part for each, as in `harp.collectives.few_bits_plan`:

1. each rank encodes all parts of its own;
2. part j starts at the rank at position j. In each of N - 1 hops a rank sends its sum of a part to
   its right neighbour, which adds its own encoded part to it, in float32, and encodes the result;
3. the complete sums are sent once more around the ring, unchanged, and all ranks decode them.

Each host sends 2 (N - 1) / N of an encoded vector, as in the direct exchange. The gain is on a line
between two sites: if the hosts of a site are neighbours in the ring, that line carries these bytes
once each way, while the direct exchange sends them over it for every pair of hosts. The price is
2 (N - 1) delays instead of 2, and values that are rounded at each hop. `harp.lightcc.outer_policy`
chooses between the two.

Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
JPDC 2009, for the ring; Jaghouar et al., "INTELLECT-1 technical report" (arXiv 2412.01152), for one
of int8 that adds up in float32. There a rank adds its own values before encoding them; here it
encodes them first, so that a plan needs only one kind of work: adding up two messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.collective_plan import Plan, Stage
from harp.collectives.few_bits_plan import Code, Coding, Parts, message_bytes, require_few_bits
from harp.collectives.ir import (
    Buffer,
    LocalWork,
    Op,
    Phase,
    Transfers,
    local_phase,
)
from harp.collectives.layout import Groups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harp.collectives.ir import Index, Ints
    from harp.collectives.request import Request


def part_sent(position: Index, hop: Index, hosts: int) -> Ints:
    """Part that a rank sends to its right neighbour, in a hop counted over both ways around.

    The first ``hosts - 1`` hops add up; the others send whole sums.
    """
    return np.asarray((np.asarray(position, np.int64) - np.asarray(hop)) % hosts)


@dataclass(frozen=True)
class Rooms:
    """Places of a rank's messages in CODES.

    By part its own one, or what it has of the sum, and behind it the one that came.
    """

    parts: Parts
    unit_bytes: int

    def own(self, part: Index) -> Ints:
        """A rank's own message of a part, later the sum's."""
        slot = int(message_bytes(self.parts.room, self.parts.bits))
        return np.asarray(2 * slot * np.asarray(part, np.int64))

    def came(self, part: Index) -> Ints:
        """From the left neighbour."""
        return np.asarray(self.own(part) + self.parts.message(0, part))

    def coding(self, part: int, slots: int = 1) -> Coding:
        """A part as floats and as a message: its own one, or both."""
        unit, parts = self.unit_bytes, self.parts
        return Coding(int(unit * parts.start(0, part)), int(unit * parts.length(0, part)),
                      int(self.own(part)), slots * int(parts.message(0, part)), slots)

    def every(self, position: int, shard: int) -> Iterator[Coding]:
        """All parts."""
        del position, shard
        yield from map(self.coding, range(self.parts.hosts))

    @property
    def nbytes(self) -> int:
        """All of it."""
        return int(self.own(self.parts.hosts))


@dataclass(frozen=True, eq=False)
class Trip(Stage):
    """One trip around the ring: in each step all ranks send a message to their right neighbours."""

    label: str
    groups: Groups
    rooms: Rooms
    adds: bool
    """Whether what comes is added up on the way, or is the whole sum already."""

    @property
    def steps(self) -> int:
        """One less than the hosts, and one without messages after those that add up."""
        return self.groups.size - 1 + self.adds

    def _rows(self, position: Ints, index: Index) -> Transfers:
        parts, members = self.rooms.parts, self.groups.members[0]
        hop = np.asarray(index) + (0 if self.adds else parts.hosts - 1)
        part = part_sent(position, hop, parts.hosts)
        return Transfers.build(
            step=index, src=members[position], dst=members[(position + 1) % parts.hosts],
            op=Op.COPY, src_buffer=Buffer.CODES, src_offset=self.rooms.own(part),
            dst_buffer=Buffer.CODES, length=parts.message(0, part),
            dst_offset=self.rooms.came(part) if self.adds else self.rooms.own(part))

    def step(self, index: int) -> Transfers:
        """One message from each rank, but for the last step of those that add up."""
        if index == self.groups.size - 1:
            return Transfers.empty()
        return self._rows(np.arange(self.groups.size), index)

    def sends(self, rank: int) -> Transfers:
        """One message a step, to the right neighbour."""
        _, position = self.groups.find(rank)
        return self._rows(position, np.arange(self.groups.size - 1))

    def receives(self, rank: int) -> Transfers:
        """One message a step, from the left neighbour."""
        _, position = self.groups.find(rank)
        return self._rows((position - 1) % self.groups.size, np.arange(self.groups.size - 1))

    def local_work(self, rank: int) -> Iterator[LocalWork]:
        """Add what came in the step before to the own message, and encode the sum."""
        if not self.adds:
            return
        _, position = self.groups.find(rank)
        for step in range(1, self.groups.size):
            part = int(part_sent(position, step, self.groups.size))
            both, one = self.rooms.coding(part, 2), self.rooms.coding(part)
            if both.data_bytes:
                data = Buffer.DATA, both.data, both.data_bytes
                yield LocalWork(step, rank, Op.DECODE, Buffer.CODES, both.message,
                                both.message_bytes, *data, 2)
                yield LocalWork(step, rank, Op.ENCODE, *data, Buffer.CODES, one.message,
                                one.message_bytes, 1)

    def phases(self) -> Iterator[Phase]:
        """One phase in which an edge carries all parts but one, and one each for its local work."""
        parts, members = self.rooms.parts, self.groups.members[0]
        positions = np.arange(self.groups.size)
        spared = (positions + (1 if self.adds else 2)) % parts.hosts
        carried = message_bytes(parts.elements, parts.bits) - parts.message(0, spared)
        yield Phase(self.label, members, np.roll(members, -1), carried, parts.hosts - 1,
                    self.groups.numbers)
        if self.adds:
            added = np.empty(len(members), np.int64)
            added[members] = parts.elements - parts.length(0, positions)  # all but the first sent
            yield local_phase("add parts", Op.DECODE, 2 * added)
            yield local_phase("encode sums", Op.ENCODE, added)


def ring(request: Request) -> Plan:
    """Quantised allreduce around a ring of hosts of one rank.

    Time encode(n) + (N-1)·(alpha + q/(N·B)) + add(2(N-1)/N·n) + encode((N-1)/N·n) +
    (N-1)·(alpha + q/(N·B)) + add(n), with q bytes of an encoded vector.
    """
    require_few_bits(request)
    order, alone = Groups(request.placement()[None, :]), Groups(request.placement()[:, None])
    parts = Parts(request.nbytes // request.unit_bytes, order.size, 1, request.bits)
    rooms = Rooms(parts, request.unit_bytes)

    def whole(position: Ints, shard: Ints) -> Ints:
        return parts.elements + 0 * (position + shard)
    stages = (Code("encode parts", Op.ENCODE, alone, rooms.every, whole),
              Trip("ring parts", order, rooms, adds=True),
              Trip("ring sums", order, rooms, adds=False),
              Code("decode sums", Op.DECODE, alone, rooms.every, whole))
    return Plan("ring-few-bits", "allreduce", request.ranks, request.nbytes, request.unit_bytes,
                stages, {Buffer.DATA: request.nbytes, Buffer.CODES: rooms.nbytes},
                bits=request.bits)
