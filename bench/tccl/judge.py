"""Outcomes of scenes with HARP and with kernel TCP, judged against their targets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.tccl.goodput import Run
    from bench.tccl.scenes import Moment, Scene

BUSY = 0.1
"""Share of late time above which a row of the lab says little."""


class Figures(NamedTuple):
    """The reaction of one stack to a moment."""

    noticed_ms: float
    back_ms: float
    """Until traffic reached its target to stay."""
    share: float
    """Goodput by the remaining capacity, from the time when it had to be back."""
    lost_bytes: int
    error: str


class Outcome(NamedTuple):
    """A moment of a scene."""

    fidelity: str
    scene: str
    what: str
    target: float
    within_ms: float
    noticed_ms: float
    """Target."""
    harp: Figures
    tcp: Figures | None
    late: float = 0.0
    """Share of the time for which the machine was late, in HARP's runs."""

    @property
    def good(self) -> bool:
        """Whether HARP met its targets."""
        harp = self.harp
        return (harp.back_ms <= self.within_ms and harp.noticed_ms <= self.noticed_ms
                and harp.share >= self.target and not harp.lost_bytes and not harp.error)

    def to_json(self) -> dict[str, Any]:
        """Return the row for --json; what never happened is null."""
        made = {"id": f"{self.what}, {self.fidelity}", **self._asdict(), "ok": self.good}
        return made | {name: None if one is None else _plain(one)
                       for name, one in (("harp", self.harp), ("tcp", self.tcp))}

    @classmethod
    def of(cls, made: dict[str, Any]) -> Outcome:
        """Read what `to_json` wrote."""
        def figures(stack: dict[str, Any] | None) -> Figures | None:
            return None if stack is None else Figures._make(
                math.inf if stack[what] is None else stack[what] for what in Figures._fields)

        stacks = {name: figures(made[name]) for name in ("harp", "tcp")}
        return cls(**{name: stacks.get(name, made[name]) for name in cls._fields})


def _plain(figures: Figures) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in figures._asdict().items()}


def _spans(scene: Scene) -> Iterator[tuple[int, Moment, float]]:
    """The moments that are judged, with their number, and when the next of them begins."""
    judged = [(number, moment) for number, moment in enumerate(scene.moments) if moment.what]
    ends = [*(moment.at_s for _, moment in judged[1:]), scene.end_s]
    for (number, moment), end_s in zip(judged, ends, strict=True):
        yield number, moment, end_s


def _figures(run: Run, number: int, moment: Moment, end_s: float) -> Figures:
    since_s = run.moments_s[number] if number < len(run.moments_s) else moment.at_s
    remains_bps = moment.remains * run.capacity_bps
    back_s = run.trace.back_after(since_s, end_s, moment.target * remains_bps)
    sign_s = next((at_s - since_s for at_s in run.signs_s if at_s >= since_s), math.inf)
    return Figures(1e3 * min(sign_s, back_s), 1e3 * back_s,
                   run.trace.bps(moment.at_s + moment.within_s, end_s) / remains_bps,
                   run.lost_bytes, run.error)


def _median(several: list[Figures]) -> Figures:
    """Medians of times and shares; of losses and errors the worst."""
    noticed, back, share = (sorted(values)[len(several) // 2] for values in zip(
        *((figures.noticed_ms, figures.back_ms, figures.share) for figures in several),
        strict=True))
    return Figures(noticed, back, share, max(figures.lost_bytes for figures in several),
                   next((figures.error for figures in several if figures.error), ""))


def judge(fidelity: str, scene: Scene, harp: list[Run], tcp: list[Run]) -> list[Outcome]:
    """Make the outcomes of a scene out of its runs."""
    rows = []
    for number, moment, end_s in _spans(scene):
        ours, theirs = ([_figures(run, number, moment, end_s) for run in runs]
                        for runs in (harp, tcp))
        rows.append(Outcome(fidelity, scene.name, moment.what, moment.target, moment.within_s * 1e3,
                        moment.noticed_s * 1e3, _median(ours), _median(theirs) if theirs else None,
                        sorted(run.late for run in harp)[len(harp) // 2]))
    return rows


HEADER = (f"{'':39}{'target':>14}  {'HARP':>8}{'back':>9}{'share':>7}{'lost':>7}    {'TCP back':>9}"
          f"{'share':>7}{'lost':>9}")


def _ms(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.0f} ms"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count else "0"


def line(row: Outcome) -> str:
    """One line for people."""
    harp, tcp = row.harp, row.tcp
    text = (f"{row.fidelity:7}{row.what:33}{row.target:.2f} in {row.within_ms:3.0f} ms  "
            f"{_ms(harp.noticed_ms):>8}{_ms(harp.back_ms):>9}{harp.share:7.2f}"
            f"{_bytes(harp.lost_bytes):>7}")
    if tcp is not None:
        text += f"    {_ms(tcp.back_ms):>9}{tcp.share:7.2f}{_bytes(tcp.lost_bytes):>9}"
    if harp.error:
        text += f"  HARP ended: {harp.error}"
    if not row.good:
        text += "  missed"
    return text + (f"  (machine busy: late {row.late:.0%} of the time)" if row.late > BUSY else "")
