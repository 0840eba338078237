"""Read the JSON that nccl-tests' all_reduce_perf writes with ``-J``.

The layout is that of versions 2 and 3 (NVIDIA/nccl-tests, src/util.cu). Its traps: it holds the
whole environment of the process, and nothing of that is read or kept here; it lists one device a
process, whatever the process has; words stand for what other writers have values for ("nan",
"true"); a size whose out-of-place run is left out has null there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sim.calibration.nccl_log import LogRow, NcclLog, count_problem, parse_log, time_problem
from sim.schema.input_errors import Problem, TopologyError, problems
from sim.schema.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator

Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Whole = Annotated[int, Field(strict=True, ge=0, le=2**60)]
Number = Annotated[float, Field(strict=True, ge=0, le=1e30)]
MOST_RANKS = 1_000_000


class _Part(BaseModel):
    """Only the keys that are named; all others, the environment among them, are dropped."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Device(_Part):
    rank: Whole
    hostname: Annotated[str, Field(min_length=1, max_length=1024)]


class _Config(_Part):
    nthreads: Count
    ngpus: Count
    devices: list[_Device] | None = None


class _Time(_Part):
    time: Number
    alg_bw: Number
    bus_bw: Number
    nwrong: Number | None = None


class _Result(_Part):
    size: Whole
    count: Whole
    out_of_place: _Time | None = None
    in_place: _Time | None = None


class _Document(_Part):
    config: _Config
    devices: list[_Device] | None = None
    results: Annotated[list[_Result], Field(max_length=100_000)]
    average_bus_bandwidth: Any = None


def read_nccl(text: str, file: str) -> NcclLog:
    """Read what all_reduce_perf printed, or its JSON; raises TopologyError."""
    if text.lstrip()[:1] == "{":
        return parse_document(parse_json(text, file), file)
    return parse_log(text, file)


def is_nccl_tests(data: object) -> bool:
    """Whether JSON looks like nccl-tests'."""
    return isinstance(data, dict) and "results" in data and "config" in data


def parse_document(data: Any, file: str) -> NcclLog:
    """The times in nccl-tests' JSON; raises TopologyError."""
    if not is_nccl_tests(data):
        raise TopologyError(file, Problem("no results of nccl-tests in it", allowed="the file that "
                                          "all_reduce_perf -J writes"))
    try:
        document = _Document.model_validate(data)
        if document.average_bus_bandwidth is None:
            raise Problem("the run is cut off", allowed="a file with average_bus_bandwidth, which "
                          "nccl-tests writes when it is done")
        hosts = _hosts(document)
        return NcclLog(len(hosts), hosts, tuple(_rows(document, len(hosts))))
    except ValidationError as error:
        raise TopologyError(file, problems(error, data)[0]) from None
    except Problem as problem:
        raise TopologyError(file, problem) from None


def _hosts(document: _Document) -> tuple[str, ...]:
    """Host of each rank: the first one of each process is listed, and stands for the others."""
    devices = document.config.devices or document.devices or []
    of_process = document.config.nthreads * document.config.ngpus
    if len(devices) * of_process > MOST_RANKS:
        raise Problem(f"{len(devices)} devices of {of_process:,} ranks each", path=("config",),
                      allowed=f"{MOST_RANKS:,} ranks")
    first = {device.rank: device.hostname for device in devices}
    if sorted(first) != [number * of_process for number in range(len(devices))]:
        raise Problem(f"its {len(devices)} devices are no processes of {of_process} ranks",
                      path=("config", "devices"), allowed="one device a process, in order of ranks")
    hosts = tuple(host for _, host in sorted(first.items()) for _ in range(of_process))
    if len(hosts) < 2:
        raise Problem(f"it measures {len(hosts)} rank", allowed="2 ranks or more")
    return hosts


def _rows(document: _Document, ranks: int) -> Iterator[LogRow]:
    found = False
    for number, result in enumerate(document.results):
        if result.size == 0:
            continue
        if problem := count_problem(result.size, result.count):
            raise problem.under("results", number)
        for half in ("out_of_place", "in_place"):
            one: _Time | None = getattr(result, half)
            if one is None:
                continue
            problem = time_problem(one.time, one.alg_bw, one.bus_bw, one.nwrong or 0.0,
                                   size=result.size, ranks=ranks)
            if problem:
                raise problem.under("results", number, half)
            found = True
            yield LogRow(result.size, result.count, one.time * 1e-6, number)
    if not found:
        raise Problem("it has no times", path=("results",), allowed="at least one size above 0")
