"""`harp diagnose` on eleven faults that it has to name, and on ten healthy jobs.

Four hosts with two ports each (lab_job.py) send real HARP traffic. Each fault strikes a healthy
job, one at a time. A row is right if every suspect is the struck part. docs/use/diagnose.md keeps
the table. Root.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

from bench.diagnose.lab_job import HOSTS, RATE_BPS, WARM_S, Lab, Traffic
from bench.diagnose.strikes import Load
from bench.rows import Row, by_id
from bench.subject import Subject
from harp.cli.diagnose.suspects import find_suspects
from lab.impairments import drop_long, drop_share, drop_to, flip_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.rows import Result
    from harp.cli.diagnose.suspects import Suspect

    Strike = Callable[[Lab, Traffic], "Callable[[], None] | None"]

ALL_TO_ALL = tuple(Load(a, b) for a, b in permutations(range(len(HOSTS)), 2))
SETTLE_S = 0.3
"""From a fault to the first look."""


class Fault(NamedTuple):
    """A fault, and the suspect that has to be named."""

    name: str
    strike: Strike
    kind: str
    culprit: str
    """A part of the suspect's name."""
    way: str
    symptom: str


def _do(action: Callable[[Lab], object]) -> Strike:
    def strike(lab: Lab, _: Traffic) -> None:
        action(lab)
    return strike


def _lose_tor(lab: Lab) -> None:
    for host in range(len(HOSTS)):
        lab.set_link(host, 1, up=False)


def _slow_down(_: Lab, traffic: Traffic) -> None:
    traffic.slow[2] = RATE_BPS / 3


def _flap(lab: Lab, _: Traffic) -> Callable[[], None]:
    turns = [0]

    def turn() -> None:
        turns[0] += 1
        if turns[0] % 100 == 0:
            lab.set_link(0, 1, up=turns[0] % 200 == 0)
    return turn


NOTHING = "carries nothing"
FAULTS = (
    Fault("link down", _do(lambda lab: lab.set_link(0, 1, up=False)), "port", "a1", "both",
          NOTHING),
    Fault("link flaps", _flap, "port", "a1", "both", ""),
    Fault("link at 40 %", _do(lambda lab: lab.set_share(1, 1, 0.4)), "port", "b1", "in",
          "is slower than others like it"),
    Fault("2 % of packets corrupted", _do(lambda lab: lab.filter_out(0, 1, flip_bits(0.02))),
          "port", "a1", "out", "corrupts packets"),
    Fault("ToR lost", _do(_lose_tor), "network", "10.0.2.0/24", "both", NOTHING),
    Fault("one rank slow", _slow_down, "host", "host c", "in", "is late to receive"),
    Fault("NIC port lost", _do(lambda lab: lab.remove_port(3, 1)), "port", "10.0.2.4", "both",
          NOTHING),
    Fault("2 % lost, one direction", _do(lambda lab: lab.filter_out(1, 0, drop_share(0.02))),
          "port", "b0", "out", "loses packets"),
    Fault("black hole, inbound", _do(lambda lab: lab.filter_in(2, 0, drop_share(1))),
          "port", "c0", "in", NOTHING),
    Fault("MTU 1280, untold", _do(lambda lab: lab.filter_out(3, 0, drop_long(1280 + 14))),
          "port", "d0", "out", "drops long packets"),
    Fault("one way black", _do(lambda lab: lab.filter_out(0, 0, drop_to("10.0.1.3"))),
          "path", "a0 (10.0.1.1) of a to port c0", "out", NOTHING),
)
HEALTHY = {
    "all to all": ALL_TO_ALL,
    "ring": tuple(Load(a, (a + 1) % 4) for a in range(4)),
    "pairs both ways": (Load(0, 1), Load(1, 0), Load(2, 3), Load(3, 2)),
    "three to one": tuple(Load(a, 0) for a in (1, 2, 3)),
    "one to three": tuple(Load(0, b) for b in (1, 2, 3)),
    "one pair": (Load(0, 3),),
    "trickle": tuple(load._replace(message_bytes=4096, most_bps=RATE_BPS / 50)
                     for load in ALL_TO_ALL),
    "bursts": tuple(load._replace(on_s=0.2, off_s=0.3) for load in ALL_TO_ALL),
    "small messages": tuple(load._replace(message_bytes=2048) for load in ALL_TO_ALL),
    "mixed": (Load(0, 1), Load(2, 1, 256 << 10), Load(3, 2, 8192, RATE_BPS / 4),
              Load(1, 3, on_s=0.1, off_s=0.2), Load(3, 0, 1024, RATE_BPS / 100)),
}


def run_fault(fault: Fault, looks: int = 1) -> Result:
    """Strike an all-to-all and diagnose it, until that is right or ``looks`` times."""
    lab = Lab()
    try:
        traffic = Traffic(lab, ALL_TO_ALL)
        try:
            traffic.run(WARM_S)
            turn = fault.strike(lab, traffic)
            for _ in range(looks):
                traffic.run(SETTLE_S, turn)
                row = _judge(fault, find_suspects(traffic.reports(turn)))
                if row["ok"]:
                    break
        finally:
            traffic.close()
    finally:
        lab.close()
    return row


def _result(name: str, *, right: bool, suspects: list[Suspect]) -> Result:
    return {"id": name, "ok": right, "suspects": [suspect.document() for suspect in suspects],
            "sentences": [suspect.sentence for suspect in suspects]}


def _judge(fault: Fault, suspects: list[Suspect]) -> Result:
    right = bool(suspects) and all(
        (suspect.kind, suspect.way) == (fault.kind, fault.way) and fault.culprit in suspect.name
        and fault.symptom in suspect.symptom for suspect in suspects)
    return _result(fault.name, right=right, suspects=suspects)


def run_healthy(lab: Lab, name: str) -> Result:
    """Diagnose a healthy job."""
    traffic = Traffic(lab, HEALTHY[name])
    try:
        traffic.run(WARM_S)
        suspects = find_suspects(traffic.reports())
    finally:
        traffic.close()
    return _result(name, right=not suspects, suspects=suspects)


def line(row: Result) -> str:
    """Write a row of the table of docs/use/diagnose.md."""
    said = "; ".join(row["sentences"]) or "nothing"
    return f"| {row['id']} | {said} | {'yes' if row['ok'] else '**no**'} |"


def measure(rows: Sequence[Row]) -> Iterator[Result]:
    """Run the faults, each in a lab of its own, then the healthy jobs in one."""
    faults = {fault.name for fault in FAULTS}
    yield from (row.function() for row in rows if row.id in faults)
    if healthy := [row for row in rows if row.id not in faults]:
        with closing(Lab()) as lab:
            yield from (row.function(lab, row.id) for row in healthy)


ROWS = by_id((*(Row(fault.name, f"all to all; the suspect: {fault.kind} {fault.culprit}",
                    partial(run_fault, fault), target="named, and nothing else")
                for fault in FAULTS), *(
    Row(name, "a healthy job", run_healthy, target="no suspect") for name in HEALTHY)))
SUBJECT = Subject(__doc__ or "", ROWS, measure, [],
                  "| what happens | what is said | right |\n|---|---|---|", line)
