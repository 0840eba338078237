"""Groups of gloo's collectives, out of what PyTorch's flight recorder notes of a rank.

Neither file of the profiler names them. The recorder notes each collective within its call, with
the time and the group; a job dumps its notes by ``_dump_fr_trace_json`` of
``torch._C._distributed_c10d``. Gloo's messages are not in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

from harp.reading import FileError, Node
from sim.schema.input_errors import Problem, listing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

MOST_NS = (1 << 64) - 1


def groups_of_calls(document: Mapping[str, Any], known: Collection[str], zero_ns: int,
                    calls: Iterable[tuple[int, float, float]]) -> dict[int, str]:
    """Groups by the number of a call, which is given with its two ends in us since ``zero_ns``.

    A call has none where another thread's collective of another group is noted within it. Raises
    Problem.
    """
    noted = sorted(_notes(document, known, zero_ns))
    times = [time for time, _ in noted]
    found = {}
    for number, start, end in calls:
        inside = {group for _, group in noted[bisect_left(times, start):bisect_right(times, end)]}
        if len(inside) == 1:
            (found[number],) = inside
    return found


def _notes(document: Mapping[str, Any], known: Collection[str],
           zero_ns: int) -> list[tuple[float, str]]:
    try:
        noted = [((entry["time_created_ns"].whole(0, MOST_NS) - zero_ns) / 1000,
                  _group(entry["process_group"])) for entry in Node(document, "")["entries"].each()]
    except FileError as error:
        raise Problem(str(error), allowed="the JSON that PyTorch's flight recorder dumps") from None
    for _, group in noted:
        if group not in known:
            raise Problem(f"holds a call of the group {group!r}",
                          allowed=f"groups of the same job: {listing(list(known))}")
    return noted


def _group(value: Node) -> str:
    """The name of a group, which stands before its description."""
    both = value.each()
    return both[0].text() if both else value.fail("a list of a name and a description")
