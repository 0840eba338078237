"""Read the JSON that iperf3 writes with ``-J``: one run, as measurements of a stream.

``cpu_utilization_percent`` is CPU time of the iperf3 process over wall time, in percent of one core
(esnet/iperf, cpu_util in src/iperf_util.c). So cost per byte is the busier end's cores over the
rate that arrived, whatever the limit was. Kernel work in interrupts is no process's time: where
that is much, as on a receiver without a NIC that coalesces, the cost is a lower bound. One stream
without a target rate that leaves its core idle is held back by something else, which is taken as
the rate of a flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sim.calibration.measurements import Measured, row_of
from sim.schema.input_errors import Problem, TopologyError, missing, problems, show

if TYPE_CHECKING:
    from sim.calibration.measurements import Row
    from sim.schema.parameters import HostStack

BUSY = 0.9
"""Share of a core from which on a stream counts as held back by the CPU. Assumed."""
LEAST_S = 1.0
"""Shortest run that is taken: a shorter one is slow start."""
IP_UDP_BYTES = 28
"""Headers of IPv4 and UDP (RFC 791, RFC 768), which the MTU counts and iperf3's blocks do not."""
IP_TCP_BYTES = 52
"""Headers of IPv4, and of TCP with timestamps (RFC 791, RFC 9293, RFC 7323)."""
USUAL_MTU = 1500
Number = Annotated[float, Field(ge=0, le=1e30)]
Percent = Annotated[float, Field(ge=0, le=409_600)]
"""Of a core, of as many as a stream may keep busy."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Test(_Part):
    protocol: Literal["TCP", "UDP"]
    num_streams: Annotated[int, Field(ge=1, le=1000)]
    blksize: Annotated[int, Field(ge=1, le=2**30)]
    target_bitrate: Number = 0.0
    bidir: int = 0


class _Start(_Part):
    test_start: _Test
    tcp_mss_default: object = None


class _Sum(_Part):
    seconds: Number
    bits_per_second: Number


class _Sent(_Sum):
    lost_percent: Annotated[float, Field(ge=0, le=100)] | None = None


class _Cpu(_Part):
    host_total: Percent
    remote_total: Percent


class _End(_Part):
    sum_received: _Sum | None = None
    sum: _Sent | None = None
    """All that an older iperf3 (3.9) has of UDP: what was sent, and the share that was lost."""
    sum_received_bidir_reverse: object = None
    """The other direction, of which iperf3 3.12 has no word at the start."""
    cpu_utilization_percent: _Cpu

    @property
    def received(self) -> _Sum:
        """Give the sum that arrived; raises Problem."""
        if self.sum_received is not None:
            return self.sum_received
        if self.sum is None or self.sum.lost_percent is None:
            raise missing("sum_received", {}, ("end",))
        return _Sum(seconds=self.sum.seconds, bits_per_second=self.sum.bits_per_second
                    * (1 - self.sum.lost_percent / 100))


class _Stream(_Part):
    pmtu: Any = None


class _Interval(_Part):
    streams: list[_Stream] = []


class _Document(_Part):
    start: _Start
    intervals: list[_Interval] | None = None
    end: _End


def is_iperf3(data: object) -> bool:
    """Whether JSON looks like iperf3's."""
    return isinstance(data, dict) and "start" in data and "end" in data


def parse_document(data: Any, file: str, stack: HostStack) -> list[Row]:
    """Measurement of ``stack`` in a run; raises TopologyError."""
    error = data.get("error")
    if error:
        raise TopologyError(file, Problem(f"iperf3 failed: {show(error)}", allowed="a run that "
                                          "ended well"))
    try:
        document = _Document.model_validate(data)
        return [row_of(measured, stack) for measured in _measured(document)]
    except ValidationError as error:
        raise TopologyError(file, problems(error, data)[0]) from None
    except Problem as problem:
        raise TopologyError(file, problem) from None


def _measured(document: _Document) -> list[Measured]:
    test, end = document.start.test_start, document.end
    if test.bidir or end.sum_received_bidir_reverse is not None:
        raise Problem("a run in both directions", path=("start", "test_start", "bidir"),
                      allowed="one direction a run")
    received = end.received
    if received.seconds < LEAST_S or not received.bits_per_second:
        raise Problem(f"{received.bits_per_second:g} b/s in {received.seconds:g} s",
                      path=("end", "sum_received" if end.sum_received else "sum"),
                      allowed=f"bytes that arrive for {LEAST_S:g} s or more; ten are better")
    cores = max(end.cpu_utilization_percent.host_total,
                end.cpu_utilization_percent.remote_total) / 100
    mtu = _path_mtu(document) or USUAL_MTU
    if test.protocol == "UDP":
        mtu = min(test.blksize + IP_UDP_BYTES, mtu)
    stream: dict[str, Any] = {"kind": "stream", "rate_bps": received.bits_per_second,
                              "flows": test.num_streams, "mtu": max(256, mtu)}
    rows = [Measured(**stream, cores=cores)] if cores > 0 else []
    if test.num_streams == 1 and not test.target_bitrate and cores < BUSY:
        rows.append(Measured(**stream))
    if not rows:
        raise Problem("it shows no CPU time", path=("end", "cpu_utilization_percent"),
                      allowed="a run without a target rate")
    return rows


def _path_mtu(document: _Document) -> int | None:
    """The path's MTU as the sending kernel knew it.

    Where the client receives, its JSON has no MTU, but the MSS of its control connection.
    """
    for interval in document.intervals or []:
        for stream in interval.streams:
            if isinstance(stream.pmtu, int) and 256 <= stream.pmtu <= 65535:
                return stream.pmtu
    segment = document.start.tcp_mss_default
    if isinstance(segment, int) and 256 <= segment + IP_TCP_BYTES <= 65535:
        return segment + IP_TCP_BYTES
    return None
