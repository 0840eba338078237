"""Drawn cases on the real stack, between the namespaces of lab_job.py."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from bench.diagnose.lab_job import HOSTS, WARM_S, Lab, Traffic
from harp.cli.diagnose.suspects import find_suspects
from lab.impairments import drop_long, drop_share, flip_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.diagnose.strikes import Load, Strike
    from harp.cli.diagnose.suspects import Suspect

SETTLE_S = 0.3
_ETHERNET = 14


class LabNetwork:
    """The lab, with the verbs of `bench.diagnose.strikes.Network`."""

    hosts = len(HOSTS)

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._down: set[tuple[int, int]] = set()

    def set_cable(self, host: int, port: int, *, up: bool) -> None:
        """See `bench.diagnose.strikes.Network`; a repeated call does nothing."""
        if up is ((host, port) in self._down):
            self._down ^= {(host, port)}
            self._lab.set_link(host, port, up=up)

    def set_rate(self, host: int, port: int, share: float) -> None:
        """See `bench.diagnose.strikes.Network`."""
        self._lab.set_share(host, port, share)

    def lose(self, host: int, port: int, share: float) -> None:
        """See `bench.diagnose.strikes.Network`."""
        self._lab.filter_out(host, port, drop_share(share))

    def lose_arriving(self, host: int, port: int, share: float) -> None:
        """See `bench.diagnose.strikes.Network`."""
        self._lab.filter_in(host, port, drop_share(share))

    def corrupt(self, host: int, port: int, share: float) -> None:
        """See `bench.diagnose.strikes.Network`."""
        self._lab.filter_out(host, port, flip_bits(share))

    def shrink_mtu(self, host: int, port: int, nbytes: int) -> None:
        """See `bench.diagnose.strikes.Network`."""
        self._lab.filter_out(host, port, drop_long(nbytes + _ETHERNET))


def strike_and_ask(loads: Sequence[Load], strikes: Sequence[Strike]) -> list[Suspect]:
    """Run a job, strike it, and diagnose it."""
    with closing(Lab()) as lab, closing(Traffic(lab, loads)) as traffic:
        network = LabNetwork(lab)
        traffic.run(WARM_S)
        struck_s = time.monotonic()
        for strike in strikes:
            strike.do(network)

        def again() -> None:
            for strike in strikes:
                strike.again(network, time.monotonic() - struck_s)
        traffic.run(SETTLE_S, again)
        return find_suspects(traffic.reports(again))
