"""Read measurements in JSON: a list of rows, in either of two forms.

- Ours: ``{"kind": "stream", "rate_bps": 2.1e10, "flows": 1, "cores": 1, "mtu": 1500}``; kinds and
  keys are those of `Measured`.
- Rows of ``python -m bench stack --json``: ``{"id": "udp-tcp", "value": 21.3, "unit": "Gb/s"}``.
  `BENCH` has the equation of each known row; others are skipped and reported.

A row becomes an equation (`sim.calibration.derive`), or a ceiling of one flow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from sim.calibration.derive import Equation
from sim.network.transport import ETHERNET_BYTES
from sim.schema.base import Model
from sim.schema.input_errors import Problem, TopologyError, problems, show, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.schema.parameters import HostStack

MOST_ROWS = 10_000
Positive = Annotated[float, Field(gt=0, le=1e30, strict=True)]
Whole = Annotated[int, Field(strict=True, ge=1, le=2**50)]


class Measured(Model):
    """One measurement between two hosts; give either ``time_s`` or ``rate_bps``."""

    kind: Literal["stream", "pingpong", "messages"]
    """stream: bulk data one way; pingpong: one message there and back, and so on; messages:
    messages one way, one after the other."""
    size_bytes: Whole | None = None
    """Payload of a message, or of a whole stream that took ``time_s``."""
    time_s: Positive | None = None
    """pingpong: a round trip; messages: one message; stream: all of its ``size_bytes``."""
    rate_bps: Positive | None = None
    """Payload bits per second of all flows together."""
    flows: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 1
    """Flows of a stream."""
    cores: Annotated[float, Field(gt=0, le=4096, strict=True)] | None = None
    """Cores that a stream kept busy on the busier host. Not given: its flows, not the CPU, were the
    limit."""
    mtu: Annotated[int, Field(strict=True, ge=256, le=65535)] = 1500
    """MTU of the path."""

    @model_validator(mode="after")
    def _complete(self) -> Measured:
        if self.kind == "pingpong" and self.time_s is None:
            raise Problem("a pingpong without time_s", allowed="the time of a round trip")
        if (self.time_s is None) == (self.rate_bps is None):
            raise Problem("neither time_s nor rate_bps, or both", allowed="one of the two")
        if self.size_bytes is None and (self.kind != "stream" or self.time_s is not None):
            raise Problem("is missing and has no default", path=("size_bytes",))
        return self

    @property
    def seconds_per_byte(self) -> float:
        """Seconds that a byte takes."""
        if self.rate_bps is not None:
            return 8.0 / self.rate_bps
        assert self.time_s is not None
        assert self.size_bytes is not None
        return self.time_s / self.size_bytes


class BenchRow(BaseModel):
    """A row of ``python -m bench stack``, which has further keys beside these."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    id: str
    value: Positive
    unit: str


@dataclass(frozen=True)
class Ceiling:
    """Ceiling of one flow, measured without other limits, in seconds per bit."""

    seconds_per_bit: float


Row = Equation | Ceiling


def _udp(value: float, payload: int) -> Equation:
    """One core a host moves ``value`` Gb/s at MTU 1500."""
    return Equation(8e-9 / value, {"cost_per_byte": 1.0, "cost_per_packet": 1.0 / payload})


def _frame(value: float, _payload: int) -> Equation:
    """Charge a frame of ``value`` ns to the packet, its CRC included; a copy is not in it."""
    return Equation(value * 1e-9, {"cost_per_packet": 1.0})


def _round_trip(value: float, payload: int) -> Equation:
    """64 B there and back in ``value`` us with no NIC between: twice the cost of a message."""
    return Equation(value * 1e-6 / 2, {"cost_per_message": 1.0, "cost_per_byte": 64.0,
                                       "cost_per_packet": 64.0 / payload})


BENCH = {
    "udp-tcp": (("Gb/s",), _udp),
    "udp-raw": (("Gb/s",), _udp),
    "frame-cost": (("ns",), _frame),
    "mem-rtt": (("us", "µs", "μs"), _round_trip),
}
"""Rows of ``python -m bench stack`` by id: units that they may have, and what they measure."""


def payload_bytes(stack: HostStack, mtu: int) -> int:
    """Payload of a full packet of ``stack``."""
    return mtu - max(stack.headers.value - ETHERNET_BYTES, 0)


def parse_measurements(document: object, file: str,
                       stack: HostStack) -> tuple[list[Row], list[str]]:
    """Rows of a JSON document and the ids of those that are not used; raises TopologyError.

    ``stack`` gives the headers, hence the payload of a packet.
    """
    data = _list(document, file)
    rows: list[Row] = []
    unused: list[str] = []
    for number, item in enumerate(data):
        try:
            found = _row(item, stack)
        except Problem as problem:
            raise TopologyError(file, problem.under(number)) from None
        if found is None:
            unused.append(item["id"])
        else:
            rows.append(found)
    if not rows:
        ids = [item["id"] for item in data]
        raise TopologyError(file, unknown("measurement", ids[0], list(BENCH), (0, "id")))
    return rows, unused


def _list(data: object, file: str) -> list[Any]:
    if not isinstance(data, list) or not data:
        raise TopologyError(file, Problem(f"found {show(data)}", allowed="a list of measurements, "
                                          "or the JSON of nccl-tests or iperf3"))
    if len(data) > MOST_ROWS:
        raise TopologyError(file, Problem(f"{len(data)} rows", allowed=f"at most {MOST_ROWS}"))
    return data



def _row(item: Any, stack: HostStack) -> Row | None:
    if not isinstance(item, dict):
        raise Problem(f"found {show(item)}", allowed="a mapping with kind, or with id and value")
    if "id" in item:
        return _bench_row(_validated(BenchRow, item), stack)
    return row_of(_validated(Measured, item), stack)


def _validated(model: Any, item: dict[str, Any]) -> Any:
    try:
        return TypeAdapter(model).validate_python(item)
    except ValidationError as error:
        raise problems(error, item)[0] from None


def _bench_row(row: BenchRow, stack: HostStack) -> Equation | None:
    if row.id not in BENCH:
        return None
    units, meaning = BENCH[row.id]
    if row.unit not in units:
        raise Problem(f"{row.id} in {show(row.unit)}", path=("unit",), found=row.unit,
                      allowed=units[0])
    return meaning(row.value, payload_bytes(stack, 1500))


def row_of(row: Measured, stack: HostStack) -> Row:
    """Turn a measurement of a stack into a row; raises Problem."""
    payload = payload_bytes(stack, row.mtu)
    if payload <= 0:
        raise Problem(f"an mtu of {row.mtu}", path=("mtu",), allowed="more than the headers")
    if row.kind == "stream":
        if row.cores is None:
            return Ceiling(row.seconds_per_byte / 8 * row.flows)
        return Equation(row.seconds_per_byte * row.cores,
                        {"cost_per_byte": 1.0, "cost_per_packet": 1.0 / payload})
    assert row.size_bytes is not None
    bulk = {"cost_per_byte": float(row.size_bytes), "cost_per_packet": row.size_bytes / payload}
    time_s = row.seconds_per_byte * row.size_bytes
    if row.kind == "pingpong":
        return Equation(time_s / 2, {"start_latency": 1.0, "cost_per_message": 1.0, **bulk})
    return Equation(time_s, {"cost_per_message": 1.0, **bulk})


def ceiling_times(rows: Sequence[Row]) -> list[float]:
    """Seconds per bit of the rows that measure a flow's ceiling."""
    return [row.seconds_per_bit for row in rows if isinstance(row, Ceiling)]
