"""Read the output of nccl-tests' all_reduce_perf.

Both layouts are supported: with a root column and ``#wrong`` (since version 2.11), and with
``error`` and no root. Output of other programs between the lines (NCCL INFO, mpirun) is skipped,
and so are the rank and the time that launchers and containers put before each line. A malformed
row is an error, and so is an incomplete log: an interrupted benchmark is no measurement.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.records.busbw import busbw_factor
from sim.schema.input_errors import Problem, TopologyError, show

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_BYTES = 16 << 20
"""Largest log that is read."""
_FIRST = ["size", "count", "type", "redop"]
_EACH = ["time", "algbw", "busbw"]
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+.*?\bon\s+(\S+)\s+device")
_NRANKS = re.compile(r"\bn_?ranks\b\s*[:=]?\s*(\d{1,7})\b", re.IGNORECASE)
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\b")
_END = "Avg bus bandwidth"
_DATE = (r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?(?:\d{4}[-/]\d\d[-/]\d\d[T ]|"
         r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]?\d )")
_TIME = (rf"\[?(?:{_DATE})?\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
         r"(?: \d{4}(?=[<\[]))?\]?:?|\d{10}\.\d{1,9}")
_RANK_LABEL = (r"\[(?:[^\]\s]*@)?\d+,\d+\](?:<std\w+>)?:|\[\d+\]:?(?= )|\s*\d+:(?= )|<std\w+>:|"
               r"\[pod/[^\]\s]+\](?= )")
_LABEL = re.compile(rf"\A(?:(?:(?:{_TIME})(?=[ <\[])|{_RANK_LABEL}) ?(?:std(?:out|err) F )?)+")
"""A line's rank, as Open MPI's ``--tag-output``, mpiexec's ``-prepend-rank`` and ``srun -l`` put
it, its pod, as ``kubectl logs --prefix`` does, and its time, as ``--timestamp-output``, ``ts``,
``kubectl logs --timestamps`` and containerd's files have it."""


@dataclass(frozen=True)
class LogRow:
    """One time of the table: out-of-place or in-place."""

    size_bytes: int
    count: int
    time_s: float
    line: int


@dataclass(frozen=True)
class NcclLog:
    """Contents of a log: number of ranks, their hosts (empty if not in the log), and the times."""

    ranks: int
    hosts: tuple[str, ...]
    rows: tuple[LogRow, ...]


def is_labelled(text: str) -> bool:
    """Whether lines begin with a rank or a time, which may look like the beginning of JSON."""
    return _LABEL.match(text) is not None


def parse_log(text: str, file: str) -> NcclLog:
    """Parse a log; raises TopologyError with the line that is at fault."""
    lines = [_LABEL.sub("", line) for line in text.splitlines()]
    headers = [(number, columns) for number, line in enumerate(lines, 1)
               if (columns := _columns(line)) is not None]
    if not headers:
        if any(_columns(line.replace("cputime", "time")) for line in lines):
            raise _error(file, 0, "its times are the CPU's", allowed="a run without -C 1")
        raise _error(file, 0, "no table of nccl-tests in it", allowed="the output of "
                     "all_reduce_perf, with its header lines")
    if len(headers) > 1:
        raise _error(file, headers[1][0], "a second table starts here", allowed="one run a log")
    start, columns = headers[0]
    ranks, hosts = _ranks(lines, file)
    rows = [row for number, line in enumerate(lines[start:], start + 1) if _ROW.match(line)
            for row in _row(line.split(), columns, ranks, (file, number))]
    if not any(_END in line for line in lines[start:]):
        raise _error(file, len(lines), "the log is cut off", allowed=f"a line '# {_END}' at the "
                     "end, which nccl-tests prints when it is done")
    if not rows:
        raise _error(file, start, "the table has no rows", allowed="at least one size above 0")
    return NcclLog(ranks, hosts, tuple(rows))


def _error(file: str, line: int, says: str, *, found: object = None,
           allowed: str = "") -> TopologyError:
    return TopologyError(file, Problem(says, found=found, allowed=allowed), line, min(line, 1))


def _columns(line: str) -> list[str] | None:
    """Names of the columns if the line is the table's header."""
    words = line.replace("#wrong", "wrong").lstrip("# ").split()
    return words if words[:3] == _FIRST[:3] and "time" in words else None


def _layouts() -> list[list[str]]:
    return [[*first, *_EACH, last, *_EACH, last]
            for first in ([*_FIRST, "root"], _FIRST) for last in ("wrong", "error")]


def _ranks(lines: Sequence[str], file: str) -> tuple[int, tuple[str, ...]]:
    """Return the number of ranks, and the host of each where the log names them."""
    found = {}
    for number, line in enumerate(lines, 1):
        if match := _RANK.search(line):
            rank = _whole(match[1], (file, number))
            if rank in found:
                raise _error(file, number, f"rank {rank} stands twice", allowed="each rank once; "
                             "nccl-tests built without MPI runs apart on each host")
            found[rank] = match[2]
    if found:
        if sorted(found) != list(range(len(found))):
            raise _error(file, 0, f"it names {len(found)} ranks, up to rank {max(found)}",
                         allowed="a line for each rank from 0")
        return _several(len(found), file), tuple(found[rank] for rank in range(len(found)))
    counts = {int(match[1]) for line in lines if (match := _NRANKS.search(line))}
    if len(counts) != 1:
        raise _error(file, 0, "it does not say how many ranks ran", allowed="lines '# Rank 0 ... "
                     "on HOST device ...' before the table, or nranks")
    return _several(counts.pop(), file), ()


def _several(ranks: int, file: str) -> int:
    if ranks < 2:
        raise _error(file, 0, f"it measures {ranks} rank", allowed="2 ranks or more")
    return ranks


def _row(words: list[str], columns: list[str], ranks: int, where: tuple[str, int]) -> list[LogRow]:
    if columns not in _layouts():
        raise _error(where[0], where[1], f"a table with the columns {' '.join(columns)}"[:150],
                     allowed="those of all_reduce_perf: size, count, type, redop, root, and twice "
                     "time, algbw, busbw, #wrong")
    if len(words) != len(columns):
        raise _error(*where, f"a row with {len(words)} columns", found=words,
                     allowed=f"the header's {len(columns)}")
    size, count = _whole(words[0], where), _whole(words[1], where)
    if size == 0:
        return []
    if problem := count_problem(size, count):
        raise TopologyError(where[0], problem, where[1], 1)
    first = columns.index("time")
    return [LogRow(size, count, _time(words[at:at + 4], size, ranks, where), where[1])
            for at in (first, first + 4)]


def count_problem(size: int, count: int) -> Problem | None:
    """Say that elements do not fill the bytes, or None where they do."""
    if count == 0 or size % count or size // count > 16:
        return Problem(f"{count} elements in {size} bytes", allowed="elements of 1 to 16 B")
    return None


def _whole(word: str, where: tuple[str, int]) -> int:
    if not re.fullmatch(r"\d{1,18}", word):
        raise _error(*where, f"found {show(word)}", allowed="a whole number")
    return int(word)


def _number(word: str, where: tuple[str, int]) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise _error(*where, f"found {show(word)}", allowed="a number of 0 or more")
    return value


def _time(words: list[str], size: int, ranks: int, where: tuple[str, int]) -> float:
    """Seconds of one half of a row whose four columns agree with each other."""
    time_us, algbw, busbw = (_number(word, where) for word in words[:3])
    wrong = 0.0 if words[3] == "N/A" else _number(words[3], where)
    if problem := time_problem(time_us, algbw, busbw, wrong, size=size, ranks=ranks):
        raise TopologyError(where[0], problem, where[1], 1)
    return time_us * 1e-6


def time_problem(time_us: float, algbw: float, busbw: float, wrong: float, *, size: int,
                 ranks: int) -> Problem | None:
    """Say what is wrong with the figures of one time, or None where they agree."""
    if time_us == 0:
        return Problem("a time of 0", allowed="a time above 0 us")
    if wrong >= 1:
        return Problem(f"{wrong:g} wrong values", allowed="0, or N/A where none are checked")
    if not math.isclose(algbw, size / time_us / 1e3, rel_tol=0.02, abs_tol=0.006):
        return Problem(f"algbw {algbw:g} GB/s is not {size} B in {time_us:g} us",
                       allowed="columns that agree with each other")
    factor = busbw_factor("allreduce", ranks)
    if not math.isclose(busbw, factor * algbw, rel_tol=0.01, abs_tol=0.006 * (1 + factor)):
        return Problem(f"busbw is {busbw:g} at algbw {algbw:g}", allowed="all_reduce_perf, "
                       f"whose busbw is {factor:g} times algbw on {ranks} ranks")
    return None
