"""Places in which sessions over kernel TCP are measured: one flow, two links, a flow that dies."""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from bench.arms import PATIENCE_S, Bench, Sample
from harp.net import Engine, Port
from lab.veth import Net, veth_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.comparison import Arms
    from harp.net import Connection
    from lab.namespace import Namespace

MESSAGE_BYTES = 1 << 20
IN_FLIGHT = 8
RATE_BPS = 10**9
"""Of each of two links."""
BURST_BYTES = 128 << 10
"""Of a shaped link: tc-tbf cuts a super-packet of TCP that is longer than its burst, and then wakes
for each packet, which costs two cores more than the session does."""
DEAD_FLOW_LEAST_S = 3.0
"""Least duration of the measurement: the session gives up a flow after 0.6 s of silence."""


def stream(sender: Connection, receiver: Connection, seconds: float,
           amid: Callable[[], object] = lambda: None) -> tuple[float, float]:
    """Send messages for a time, and call ``amid`` in its middle.

    Gives payload in Gb/s, and the longest pause between two that came whole, in seconds.
    """
    payload = bytes(MESSAGE_BYTES)
    places = deque(bytearray(MESSAGE_BYTES) for _ in range(IN_FLIGHT))
    sent = deque(sender.send(payload) for _ in places)
    posted = deque(receiver.post(place) for place in places)
    begun = last = time.monotonic()
    came, pause = 0, 0.0
    due = [amid]
    while (now := time.monotonic()) - begun < seconds:
        if due and now - begun > seconds / 2:
            due.pop()()
        posted.popleft().wait(PATIENCE_S)
        here = time.monotonic()
        came, pause, last = came + 1, max(pause, here - last), here
        sent.popleft().wait(PATIENCE_S)
        sent.append(sender.send(payload))
        posted.append(receiver.post(places[0]))
        places.rotate(-1)
    rate = came * MESSAGE_BYTES * 8e-9 / (last - begun)
    for one in posted:
        one.wait(PATIENCE_S)
    return rate, pause


@contextmanager
def connected(spaces: tuple[Namespace, Namespace], ports: tuple[Sequence[Port], Sequence[Port]],
              paths: int) -> Iterator[tuple[Connection, Connection]]:
    """Connect an engine in each namespace, with these ports: the two ends."""
    with spaces[1].entered():
        far = Engine(ports[1])
    with spaces[0].entered():
        near = Engine(ports[0])
    with near, far, far.listen(paths=paths) as listener, spaces[0].entered():
        end = near.connect(listener.handle, timeout=PATIENCE_S, paths=paths)
        yield end, listener.accept(PATIENCE_S)


@contextmanager
def two_links(bench: Bench) -> Iterator[Arms]:
    """Two links of 1 Gb/s between two hosts; one path, and two."""
    with Net() as net:
        spaces = net.namespace(), net.namespace()
        links = [net.connect(*spaces) for _ in range(2)]
        for near, _ in links:
            near.shape(RATE_BPS, burst_bytes=BURST_BYTES)

        def arm(paths: int) -> Callable[[], Sample]:
            def take() -> Sample:
                ports = [[Port("tcp", address=end.ipv4) for end in ends[:paths]]
                         for ends in zip(*links, strict=True)]
                with connected(spaces, (ports[0], ports[1]), paths) as (near, far):
                    return Sample(stream(near, far, bench.seconds)[0])
            return take

        yield {"HARP, one link": arm(1), "HARP, two links": arm(2)}


@contextmanager
def dead_flow(bench: Bench) -> Iterator[Arms]:
    """Two flows share a link, and the network drops one: the longest pause of messages, in ms."""
    def take() -> Sample:
        with veth_pair() as (a, b), ExitStack() as stack:
            ports = [[Port("tcp", address=end.ipv4, locals=2)] for end in (a, b)]
            near, far = stack.enter_context(
                connected((a.space, b.space), (ports[0], ports[1]), 2))
            port = int(near.paths[1].local.rpartition(":")[2])
            pause_s = stream(near, far, max(bench.seconds, DEAD_FLOW_LEAST_S),
                             lambda: stack.enter_context(b.losing_port(port)))[1]
            return Sample(pause_s * 1e3)

    yield {"HARP, a flow dies": take}
