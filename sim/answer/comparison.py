"""Differences between two topology files: keys, and rows of the answer.

Keys are compared by what they mean: 25Gbps is 25000Mbps, and a key that stands there with its
default is as good as none. Items of lists that have names are matched by these. A part
that only one file has is named once, not with all that is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.answer.answer import answer
from sim.cluster.cluster import Cluster
from sim.schema.input_errors import TopologyError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sim.records.results import Report, ScenarioResult
    from sim.schema.topology_model import Topology

LEFT_OUT = ("name", "description", "expect", "fitted_on", "lab")
"""Keys of the file that change no answer of fidelity flow."""
MISSING = object()


@dataclass(frozen=True)
class Change:
    """A key in which the files differ, and its values as the files have them; None: absent."""

    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Pair:
    """A row of either answer, or of one of them."""

    name: str
    gpus: int
    job: str
    before: ScenarioResult | None
    after: ScenarioResult | None

    @property
    def ratio(self) -> float | None:
        """Images/s after over before; None where one of them is missing or stands still."""
        if self.before is None or self.after is None or not self.before.images_per_s:
            return None
        return self.after.images_per_s / self.before.images_per_s

    @property
    def is_sure(self) -> bool | None:
        """Whether the intervals lie apart; None where a row has none."""
        if (self.before is None or self.after is None or self.before.interval is None
                or self.after.interval is None):
            return None
        one, other = self.before.interval, self.after.interval
        return (one.high_images_per_s < other.low_images_per_s
                or other.high_images_per_s < one.low_images_per_s)


@dataclass(frozen=True)
class Comparison:
    """Both answers."""

    changes: tuple[Change, ...]
    pairs: tuple[Pair, ...]
    before: Report
    after: Report


def compare(before: Topology, after: Topology, only: Sequence[str] = (), draws: int | None = None,
            *, quiet: bool = True) -> Comparison:
    """Compare two files.

    Args:
        before: one file.
        after: the other one.
        only: names of the scenarios to run; all where empty.
        draws: as of `sim.answer.answer.answer`.
        quiet: no progress bars.

    Raises:
        TopologyError: neither file has a scenario of ``only``.

    """
    known = list(dict.fromkeys(each.name for topology in (before, after)
                               for each in topology.scenarios))
    for name in only:
        if name not in known:
            raise TopologyError("--scenario", unknown("scenario", name, known))
    reports = [answer(Cluster(topology), [each for each in topology.scenarios
                                          if not only or each.name in only],
                      draws=draws, quiet=quiet) for topology in (before, after)]
    return Comparison(tuple(changed_keys(before, after)), tuple(_pairs(*reports)), *reports)


def _pairs(before: Report, after: Report) -> Iterator[Pair]:
    """Rows in the order of the second file, then those that it has no more."""
    olds, news = ({(row.name, row.gpus, row.job): row for row in report.scenarios}
                  for report in (before, after))
    for key in [*news, *(key for key in olds if key not in news)]:
        yield Pair(*key, olds.get(key), news.get(key))


def changed_keys(before: Topology, after: Topology) -> Iterator[Change]:
    """Keys in which two files differ, in the order of the first."""
    meaning = [_named(topology.model_dump(mode="json", by_alias=True))
               for topology in (before, after)]
    words = [_named(topology.plain or {}) for topology in (before, after)]
    for part in LEFT_OUT:
        for each in meaning:
            each.pop(part, None)
    yield from _differences("", *meaning, *words)


def _named(value: Any) -> Any:
    """Lists of things with names as mappings."""
    if isinstance(value, dict):
        return {key: _named(each) for key, each in value.items()}
    if isinstance(value, list):
        names = [each.get("name") if isinstance(each, dict) else None for each in value]
        if value and all(names) and len(set(names)) == len(names):
            return {f"[{name}]": _named({key: part for key, part in each.items() if key != "name"})
                    for name, each in zip(names, value, strict=True)}
        if value and all(isinstance(each, dict) for each in value):
            return {f"[{number}]": _named(each) for number, each in enumerate(value)}
        return [_named(each) for each in value]
    return value


def _differences(key: str, old: Any, new: Any, old_words: Any, new_words: Any) -> Iterator[Change]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for part in [*old, *(part for part in new if part not in old)]:
            yield from _differences(
                key + part if part.startswith("[") else f"{key}.{part}".lstrip("."),
                *(each.get(part, MISSING) for each in (old, new)),
                *(each.get(part, MISSING) if isinstance(each, dict) else MISSING
                  for each in (old_words, new_words)))
        return
    shown = _shown(old, old_words), _shown(new, new_words)
    yield Change(key, *shown)


def _shown(value: Any, words: Any) -> str | None:
    """A value as its file has it, else as it is meant; None where there is none."""
    if value is MISSING or (value is None and words is MISSING):
        return None
    found = value if words is MISSING else words
    if isinstance(found, dict):
        return "{...}" if found else "{}"
    if isinstance(found, bool):
        return str(found).lower()
    return str(found)

