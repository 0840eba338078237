"""Suspects: the likely common cause of bad legs, by Bayes' rule.

A suspect is a set of legs: those that leave or reach a port, a host, a network or a router, or one
path between two ports. If it is at fault, each of its legs shows the symptom except with
probability MISSED, and any other leg shows it with the symptom's probability of a mistake (Kandula
et al., "Shrink", MineNet 2005, model such noise; Tan et al., NetBouncer, NSDI 2019, such paths).
A priori "nothing is at fault" is as likely as all suspects together, and these are equally likely.
The confidence is the posterior probability: two suspects with the same legs get at most half each,
and both are reported. A fault that is found is removed with its legs, and the rest is judged again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from harp.cli.diagnose import symptoms
from harp.cli.diagnose.legs import picture_of
from harp.cli.diagnose.snapshot import ip_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from harp.cli.diagnose.legs import Leg, Picture
    from harp.cli.diagnose.snapshot import Report
    from harp.cli.diagnose.symptoms import Symptom

MISSED = 0.05
"""Probability that a leg of a faulty thing does not show it."""
SURE = 0.9
"""Probability of a fault from which suspects are reported."""
MOST = 8
"""Most suspects of one symptom."""
TOGETHER_NS = 60 * 10**9
"""Engines of one job start within this time."""


@dataclass(frozen=True)
class Suspect:
    """A thing that is likely to be at fault."""

    kind: str
    """host, port, network, router, path, process."""
    name: str
    """As printed: port a1 (10.0.2.1) of node-0."""
    host: str
    """Host to look at first; empty for things between hosts."""
    way: str
    """out, in, or both."""
    symptom: str
    confidence: float
    """Posterior probability; 1 for what was seen, not inferred."""
    evidence: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """One line to print."""
        way = {"out": ", outbound", "in": ", inbound"}.get(self.way, "")
        return f"{self.name}{way}: {self.symptom} ({self.confidence:.0%} sure)"

    def document(self) -> dict[str, Any]:
        """The entry of the JSON document."""
        return {"kind": self.kind, "name": self.name, "host": self.host, "way": self.way,
                "symptom": self.symptom, "confidence": round(self.confidence, 4),
                "evidence": list(self.evidence)}


class _Candidate(NamedTuple):
    kind: str
    name: str
    host: str
    way: str


def find_suspects(reports: Sequence[Report],
             routers: Mapping[tuple[str, str], tuple[str, ...]] | None = None) -> list[Suspect]:
    """List the suspects, certain ones first; an empty list if all is well.

    ``routers`` has the routers between two addresses with UDP ports, if a map is known.
    """
    picture = picture_of(reports)
    picture.router_of = dict(routers or {})
    found = _dead_processes(reports) + _unheard_hosts(picture)
    explained: set[int] = set()
    for host in picture.unheard:
        explained |= {id(leg) for leg in picture.legs if host in {leg.source.host,
                                                                  leg.target.host}}
    dead = {host for host in picture.unheard if any(each.host == host for each in found)}
    if not dead:
        explained.clear()
    network = _network_candidates(picture)
    for symptom in (symptoms.find_gone(picture), symptoms.find_narrow(picture),
                    symptoms.find_flapping(picture)):
        found += _explain(picture, symptom, explained, network)
    for symptom in (symptoms.find_slow(picture, disturbed=bool(found)),
                    symptoms.find_lost(picture, reports)):
        found += _explain(picture, symptom, explained, network)
    return found + _explain(picture, symptoms.find_late(picture, reports),
                            explained | _without_credit(picture, explained),
                            _receiver_candidates(picture))


def _without_credit(picture: Picture, explained: set[int]) -> set[int]:
    """Legs of connections that get no credit: all their reverse paths are suspects already."""
    blocked: dict[tuple[str, str, int] | None, bool] = {}
    for leg in picture.legs:
        back = picture.reverse(leg)
        blocked[leg.connection] = blocked.get(leg.connection, True) and id(back) in explained
    return {id(leg) for leg in picture.legs if leg.connection and blocked[leg.connection]}


def _explain(picture: Picture, symptom: Symptom, explained: set[int],
             candidates: Mapping[_Candidate, set[int]]) -> list[Suspect]:
    """Find suspects until chance explains the remaining symptoms better.

    When one is found, the earlier ones are judged again without its legs: each of two faults makes
    the other look larger.
    """
    def judge(others: Sequence[Mapping[_Candidate, float]]) -> dict[_Candidate, float]:
        left = explained.union(*(candidates[each] for other in others for each in other))
        bad = {id(leg) for leg in symptom.bad} - left
        seen = bad | ({id(leg) for leg in symptom.well} - left)
        likely = _posterior(bad, seen, candidates, symptom.mistaken) if bad else {}
        if not likely or sum(likely.values()) < SURE:
            return {}
        best = candidates[max(likely, key=lambda each: likely[each])] & seen
        return {candidate: sure for candidate, sure in likely.items()
                if candidates[candidate] & seen == best}

    found: list[dict[_Candidate, float]] = []
    while len(found) < MOST and (one := judge(found)):
        found.append(one)
        for number in range(len(found)):
            found[number] = judge(found[:number] + found[number + 1:])
    bad = {id(leg): leg for leg in symptom.bad if id(leg) not in explained}
    suspects = []
    for candidate, sure in (pair for one in found for pair in one.items()):
        legs = [leg for key, leg in bad.items() if key in candidates[candidate]]
        suspects.append(_suspect(picture, candidate, symptom, sure, legs))
        explained |= candidates[candidate]
    return suspects


def _posterior(bad: Set[int], seen: Set[int], candidates: Mapping[_Candidate, set[int]],
               mistaken: float) -> dict[_Candidate, float]:
    """The module's law, in logarithms relative to "nothing is at fault"."""
    gain_bad = math.log((1 - MISSED) / mistaken)
    gain_well = math.log(MISSED / (1 - mistaken))
    gains = {}
    for candidate, legs in candidates.items():
        covered = legs & seen
        hits = len(covered & bad)
        if hits:
            gains[candidate] = hits * gain_bad + (len(covered) - hits) * gain_well
    prior = -math.log(max(1, len(candidates)))
    top = max([0.0, *(gain + prior for gain in gains.values())])
    weights = {candidate: math.exp(gain + prior - top) for candidate, gain in gains.items()}
    total = math.exp(-top) + sum(weights.values())
    return {candidate: weight / total for candidate, weight in weights.items()}


def _network_candidates(picture: Picture) -> dict[_Candidate, set[int]]:
    """Everything that legs can have in common, with its legs."""
    sets: dict[_Candidate, set[int]] = {}
    for leg in picture.legs:
        for candidate in _candidates_of(picture, leg):
            sets.setdefault(candidate, set()).add(id(leg))
    ports = {port for leg in picture.legs for port in (leg.source, leg.target)}
    single = {port.host for port in ports
              if sum(other.host == port.host for other in ports) == 1}
    networks = {candidate for candidate in sets if candidate.kind == "network"}
    return {candidate: legs for candidate, legs in sets.items()
            if not (candidate.kind == "host" and candidate.host in single)
            and not (candidate.kind == "network" and len(networks) == 1)}


def _candidates_of(picture: Picture, leg: Leg) -> list[_Candidate]:
    source, target = leg.source, leg.target
    there = f"{picture.name(source)} to {picture.name(target)}"
    ends = sorted((source, target))
    found = [_Candidate("path", f"the path from {there}", "", "out"),
             _Candidate("path", "the path between " + " and ".join(map(picture.name, ends)), "",
                        "both")]
    for port, way in ((source, "out"), (target, "in")):
        for each in (way, "both"):
            found += [_Candidate("port", picture.name(port), port.host, each),
                      _Candidate("host", _host_name(picture, port.host), port.host, each)]
    networks = {picture.network_of.get(port.ip) for port in (source, target)}
    if len(networks) == 1 and (network := networks.pop()):
        found.append(_Candidate("network", f"network {network}", "", "both"))
    found += [_Candidate("router", f"router {router}", "", "both")
              for router in picture.router_of.get(leg.addresses, ())]
    return found


def _host_name(picture: Picture, host: str) -> str:
    return host if host in picture.unheard else f"host {host}"


def _receiver_candidates(picture: Picture) -> dict[_Candidate, set[int]]:
    sets: dict[_Candidate, set[int]] = {}
    for leg in picture.legs:
        host = leg.target.host
        found = _Candidate("host", _host_name(picture, host), host, "in")
        sets.setdefault(found, set()).add(id(leg))
    return sets


def _suspect(picture: Picture, candidate: _Candidate, symptom: Symptom, sure: float,
             legs: list[Leg]) -> Suspect:
    evidence = [symptom.evidence(legs)]
    rest = [leg for leg in symptom.well if id(leg) not in {id(one) for one in legs}]
    if rest:
        evidence.append(f"{len(rest)} other legs do not show it")
    if candidate.kind == "port":
        for port, interface in picture.interface_of.items():
            if candidate.name == picture.name(port) and not interface.running:
                evidence.append(f"interface {interface.name} reports no carrier")
    name = symptom.name
    if name == "loses packets" and "wrong checksum" in evidence[0]:
        name = "corrupts packets"
    return Suspect(candidate.kind, candidate.name, candidate.host, candidate.way, name, sure,
                   tuple(evidence))


def _dead_processes(reports: Sequence[Report]) -> list[Suspect]:
    """Engines whose process ended without closing them; seen, not inferred.

    Hosts keep engines that died long ago. An engine belongs to this job if it died between the
    samples or was the peer of a live one; if none is live, if it started with the last one.
    """
    here = [engine for report in reports for engine in report.moments[-1].engines]
    alive = {engine.file for report in reports for engine in report.moments[0].engines
             if engine.alive}
    peers = {row.peer_id for engine in here if engine.alive for row in engine.connections}
    began_ns = math.inf if any(engine.alive for engine in here) else max(
        (engine.started_unix_ns for engine in here), default=0) - TOGETHER_NS
    found = {}
    for report in reports:
        for engine in report.moments[-1].engines:
            if not engine.alive and (
                    engine.file in alive or engine.started_unix_ns >= began_ns
                    or any(row.id in peers for row in engine.connections)):
                last = "; ".join(text for _, _, text in engine.events[-3:])
                found[report.host, engine.pid] = Suspect(
                    "process", f"process {engine.pid} of {report.host}", report.host, "both",
                    "died", 1.0, (f"its engine {engine.name} was not closed",
                                  f"its last events: {last or 'nothing'}"))
    return list(found.values())


def _unheard_hosts(picture: Picture) -> list[Suspect]:
    """Hosts that sent no report and that their peers do not hear."""
    found = []
    for host in dict.fromkeys(picture.unheard):
        legs = [leg for leg in picture.legs if leg.target.host == host and leg.sent]
        heard = any(leg.source.host == host and any(leg.due_each[-1:]) for leg in picture.legs)
        if legs and not heard and not any(leg.alive for leg in legs):
            ips = ", ".join(sorted({ip_of(leg.addresses[1]) for leg in legs}))
            found.append(Suspect("host", host, host, "both", "is not heard", 1.0, (
                f"it sent no report, and all {len(legs)} paths of its peers to {ips} are dead",)))
    return found
