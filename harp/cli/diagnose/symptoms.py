"""Symptoms of legs and receivers, with the evidence.

Each symptom judges every leg as bad, well, or unknown for lack of packets. The limits are the same
for every job and fault:

- **gone**: its path or the reverse path is dead, and most of the last packets did not arrive.
- **flapping**: its path died several times and came back.
- **narrow**: whole chunks, which fitted when the connection began, no longer pass in one frame.
- **slow**: the sender's window is full, packets wait longer than on the connection's fastest leg,
  which carries much more, and a port at one of its ends carries much less in total than another
  port of its host. Single flows share a port by chance; totals do not vary that much.
- **corrupted**, **lost**: the share of lost packets is above 0.1 %, which operators of data centres
  treat as an incident (Guo et al., "Pingmesh", SIGCOMM 2015: 1e-4 to 1e-5 is normal), and above
  four times the lower quartile of all legs, by five standard deviations, in every sample but one:
  one overflow of a queue does not count.
- **late**: senders wait for the receiver's credit and for nothing else, and it waits for no peer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harp.cli.diagnose.legs import TOLD_LEAST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from harp.cli.diagnose.legs import Leg, Picture, Port
    from harp.cli.diagnose.snapshot import Report

CHANCE_MISTAKEN = 0.02
CHANCE_MISTAKEN_DISTURBED = 0.05
"""The same when something else is at fault: its traffic moves, so rates differ."""
LOSS_LEAST = 1e-3
DEVIATIONS = 5.0
DEATHS = 3
"""Deaths of a path that came back each time; one may be a busy host."""
JUDGED_LEAST = 100
"""Fewest packets of a leg that is judged well."""
MUCH = 0.7
"""A rate below this share of another is much less; equal ports differ by 10 to 20 %."""
FULL = 0.5
"""Share of the window in flight from which the sender waits for ACKs."""
WAITING = 0.2
"""Share of the time."""


@dataclass
class Symptom:
    """The result of one symptom: legs, or edges from a sender to a receiver."""

    name: str
    """As printed: "loses packets"."""
    bad: list[Leg] = field(default_factory=list)
    well: list[Leg] = field(default_factory=list)
    evidence: Callable[[list[Leg]], str] = lambda _: ""
    """Gives a sentence about some of the bad legs."""
    mistaken: float = 1e-3
    """Probability that a healthy leg looks bad: counts are far from their limits; rates of equal
    legs differ by chance, and a path of a busy host dies by chance."""


def _both(legs: Iterable[Leg], judge: Callable[[Leg], bool | None]) -> tuple[list[Leg], list[Leg]]:
    """Split legs into bad and well ones; leave out those judged None."""
    bad: list[Leg] = []
    well: list[Leg] = []
    for leg in legs:
        said = judge(leg)
        if said is not None:
            (bad if said else well).append(leg)
    return bad, well


def _is_steady(each: Iterable[bool]) -> bool:
    """Whether it is true in all samples but one; a burst of traffic is not."""
    seen = list(each)
    return sum(seen) >= max(1, len(seen) - 1)


def find_gone(picture: Picture) -> Symptom:
    """Legs on which nothing arrives any more."""
    def judge(leg: Leg) -> bool | None:
        back = picture.reverse(leg)
        if _deaths(picture, leg) >= DEATHS:
            return None  # it comes and goes
        if leg.alive and (back is None or back.alive):
            return False if leg.sent + leg.due else None
        if leg.is_silent is not None:
            return leg.is_silent  # if packets arrive it is answers that do not
        if back and not back.alive and back.is_silent is False:
            return True  # these answers
        return True if not leg.alive and not leg.received else None

    def evidence(legs: list[Leg]) -> str:
        known = [leg for leg in legs if leg.is_silent is not None]
        sent, came = (sum(counts[-1] for counts in each) for each in (
            [leg.sent_each for leg in known], [leg.arrived_each for leg in known]))
        parts = [f"{sum(not leg.alive for leg in legs)} of {len(legs)} legs are dead"]
        parts += [f"{came} of the last {sent} packets arrived"] * (sent > 0)
        return ", ".join(parts)
    return Symptom("carries nothing", *_both(picture.legs, judge), evidence)


def _deaths(picture: Picture, leg: Leg) -> int:
    """Deaths of a leg's path, as seen by the end that saw more."""
    back = picture.reverse(leg)
    return max(leg.died, back.died if back else 0)


def find_flapping(picture: Picture) -> Symptom:
    """Legs of paths that die and come back."""
    def evidence(legs: list[Leg]) -> str:
        times = sum(_deaths(picture, leg) for leg in legs)
        return f"paths of {len(legs)} legs died {times} times, and came back"
    return Symptom("comes and goes", *_both(
        picture.legs,
        lambda leg: _deaths(picture, leg) >= DEATHS if leg.sent + leg.due else None),
        evidence, CHANCE_MISTAKEN)


def find_narrow(picture: Picture) -> Symptom:
    """Legs on which only shorter frames pass than at the start of their connection."""
    def evidence(legs: list[Leg]) -> str:
        least = min(leg.narrow for leg in legs)
        return (f"frames of more than {least} bytes of UDP payload do not pass on {len(legs)} legs,"
                " and no ICMP reports it")
    return Symptom("drops long packets", *_both(
        picture.legs, lambda leg: bool(leg.narrow) if leg.sent >= TOLD_LEAST
        and _deaths(picture, leg) < DEATHS else None), evidence)


def find_lost(picture: Picture, reports: Sequence[Report]) -> Symptom:
    """Legs that lose packets at random, or corrupt them."""
    counts = {id(leg): (sum(sent for sent, _ in leg.losses_each),
                        max(0, sum(lost for _, lost in leg.losses_each))) for leg in picture.legs}
    shares = sorted(lost / sent for sent, lost in counts.values() if sent >= JUDGED_LEAST)
    limit = max(LOSS_LEAST, 4 * shares[len(shares) // 4] if shares else 0.0)
    bad_checksums = {report.host: report.moments[-1].bad_checksums
                     - report.moments[0].bad_checksums for report in reports}

    def judge(leg: Leg) -> bool | None:
        sent, lost = counts[id(leg)]
        steady = _is_steady(some > 0 for _, some in leg.losses_each)
        if steady and lost > sent * limit + DEVIATIONS * math.sqrt(sent * limit + 1):
            return True
        return False if sent >= JUDGED_LEAST else None

    def evidence(legs: list[Leg]) -> str:
        sent, lost = (sum(counts[id(leg)][i] for leg in legs) for i in (0, 1))
        text = (f"{lost} of {sent} packets ({lost / max(1, sent):.2%}) were lost on "
                f"{len(legs)} legs")
        spoilt = sum(leg.bad for leg in legs) + sum(
            bad_checksums.get(host, 0) for host in {leg.target.host for leg in legs})
        return text + (f"; {spoilt} arrived with a wrong checksum" if 2 * spoilt >= lost else "")
    return Symptom("loses packets", *_both(picture.legs, judge), evidence)


def find_slow(picture: Picture, *, disturbed: bool) -> Symptom:
    """Legs that are slow although their port is not full."""
    out_bps, in_bps = _port_rates(picture)

    def carries_less(rates: dict[Port, float], port: Port) -> bool:
        most_bps = max(rate for other, rate in rates.items() if other.host == port.host)
        return rates[port] < MUCH * most_bps

    def judge(leg: Leg) -> bool | None:
        siblings = [other for other in picture.legs
                    if other.connection == leg.connection and other.alive]
        if len(siblings) < 2 or not leg.alive or leg.sent < JUDGED_LEAST:
            return None
        best = max(siblings, key=lambda other: other.rate_bps)
        most = sum(best.delivered_each) / max(1, len(best.delivered_each))
        slower = _is_steady(own < MUCH * most for own in leg.delivered_each)
        if not slower or leg.round_trip_ns <= best.round_trip_ns:
            return False
        return leg.fullness >= FULL and (carries_less(out_bps, leg.source)
                                         or carries_less(in_bps, leg.target))

    def evidence(legs: list[Leg]) -> str:
        some = sum(leg.rate_bps for leg in legs)
        best = sum(max(other.rate_bps for other in picture.legs
                       if other.connection == leg.connection) for leg in legs)
        return (f"{len(legs)} legs carry {some / 1e6:.1f} Mb/s with full windows, and the fastest "
                f"ones of the same connections {best / 1e6:.1f} Mb/s")
    return Symptom("is slower than others like it", *_both(picture.legs, judge), evidence,
                   CHANCE_MISTAKEN_DISTURBED if disturbed else CHANCE_MISTAKEN)


def _port_rates(picture: Picture) -> tuple[dict[Port, float], dict[Port, float]]:
    """Rates that each port sends and receives."""
    out_bps: dict[Port, float] = {}
    in_bps: dict[Port, float] = {}
    for leg in picture.legs:
        for rates, port in ((out_bps, leg.source), (in_bps, leg.target)):
            rates[port] = rates.get(port, 0.0) + leg.rate_bps
    return out_bps, in_bps


def find_late(picture: Picture, reports: Sequence[Report]) -> Symptom:
    """Receivers that others wait for: edges of the wait-for graph that end there."""
    waited = _waiting_shares(picture, reports)
    own: dict[str, list[float]] = {}
    for (source, _), share in waited.items():
        own.setdefault(source, []).append(share)

    def judge(leg: Leg) -> bool | None:
        share = waited.get((leg.source.host, leg.target.host))
        if share is None:
            return None
        waits_itself = max(own.get(leg.target.host, [0.0]))
        return share - waits_itself >= WAITING

    def evidence(legs: list[Leg]) -> str:
        some = {leg.source.host: waited[leg.source.host, leg.target.host] for leg in legs}
        mean = sum(some.values()) / len(some)
        return (f"{len(some)} senders wait for its receive buffers {mean:.0%} of the time, "
                "and it waits for no peer's")
    return Symptom("is late to receive", *_both(picture.legs, judge), evidence)


def _waiting_shares(picture: Picture, reports: Sequence[Report]) -> dict[tuple[str, str], float]:
    """Largest share of the time that messages from one host waited for another's credit."""
    peers = {leg.connection: (leg.source.host, leg.target.host) for leg in picture.legs
             if leg.connection}
    shares: dict[tuple[str, str], list[float]] = {}
    for report in reports:
        before = {(engine.file, row.id): row.starved_ns for engine in report.moments[0].engines
                  for row in engine.connections}
        for engine in report.moments[-1].engines:
            for row in engine.connections:
                ends = peers.get((report.host, engine.file, row.id))
                if ends and (engine.file, row.id) in before:
                    grown = row.starved_ns - before[engine.file, row.id]
                    shares.setdefault(ends, []).append(grown * 1e-9 / report.seconds)
    return {ends: max(some) for ends, some in shares.items()}
