"""TCP of fidelity packet against the kernel of this machine.

Flows that begin together send into a queue of 250 KB that is emptied at 100 Mb/s, in the model and
over a veth pair with tbf. The figures are the share of the line's rate and the mean queue, from
second 4 to second 12. The rate is low enough for the host's speed not to count. Needs root.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING

from bench.rows import Row, by_id
from bench.subject import Subject, each
from lab import veth
from sim.network.packet.packet_world import End, Stage, Tcp, World

if TYPE_CHECKING:
    from bench.rows import Result

RATE, BUFFER = 100_000_000, 250_000
SETTLE_S, MEASURE_S, SAMPLES = 4, 8, 40
MSS, WIRE = 1448, 1514
"""tbf counts Ethernet's header, and neither preamble nor gap."""
NS = 1_000_000_000

SINK = """
import socket, sys, threading
listener = socket.create_server((sys.argv[1], 5001), backlog=64)
print(flush=True)
def drain(peer):
    while peer.recv(1 << 20):
        pass
while True:
    threading.Thread(target=drain, args=(listener.accept()[0],), daemon=True).start()
"""
SOURCE = """
import socket, sys, threading
def send():
    peer = socket.socket()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, sys.argv[2].encode())
    peer.connect((sys.argv[1], 5001))
    while True:
        peer.send(bytes(1 << 18))
for _ in range(int(sys.argv[3])):
    threading.Thread(target=send).start()
"""


def simulate(congestion: str, flows: int) -> tuple[float, float]:
    """Share of the line, and bytes in the queue, in the model."""
    world = World(seed=1, segment=1408, overhead=66, slots=8, piece_bytes=512 << 10,
                  unit_bytes=65536)
    up, answers = (world.add_link(10e9, 1e-6, target=0) for _ in range(2))
    down, back = world.add_link(RATE, 1e-6, source=0), world.add_link(10e9, 1e-6, source=0)
    world.share_buffers(1, 2 * BUFFER, 1.0)
    free = world.add_chain([], [])
    ends = [End(world.add_process(), free, free) for _ in range(2)]
    for _ in range(flows):
        channel = world.add_tcp(ends[0], ends[1], [world.add_route([up, down])],
                                [world.add_route([answers, back])],
                                Tcp(MSS, WIRE - MSS, congestion))
        run = world.add_run(2, 1)
        world.advance(world.now_ns)
        world.load(run, Stage([0], [1], [channel], [1 << 36], [1 << 17]))
        world.advance(world.now_ns + NS // 20_000)
    world.advance(SETTLE_S * NS)
    before, queues = world.link_counts(down).bytes, []
    for _ in range(SAMPLES):
        world.advance(world.now_ns + MEASURE_S * NS // SAMPLES)
        queues.append(world.link_counts(down).waiting_bytes)
    return (world.link_counts(down).bytes - before) * 8 / MEASURE_S / RATE, mean(queues)


def _queue(end: veth.End) -> tuple[int, int]:
    """Bytes that the queue has sent, and that wait in it."""
    said = end.space.run("tc", "-s", "qdisc", "show", "dev", end.device)
    sent = re.search(r"Sent (\d+) bytes", said)
    waits = re.search(r"backlog (\d+)(K?)b", said)
    assert sent, said
    assert waits, said
    return int(sent[1]), int(waits[1]) * (1024 if waits[2] else 1)


def measure(congestion: str, flows: int) -> tuple[float, float]:
    """Share of the line, and bytes in the queue, over the kernel."""
    with veth.veth_pair() as (near, far):
        near.shape(RATE, BUFFER, burst_bytes=3000)
        sink = far.space.start(sys.executable, "-c", SINK, far.ipv4, stdout=subprocess.PIPE)
        assert sink.stdout is not None
        sink.stdout.readline()
        near.space.start(sys.executable, "-c", SOURCE, far.ipv4, congestion, str(flows),
                         stderr=subprocess.DEVNULL)
        time.sleep(SETTLE_S)  # a real kernel settles in real time
        (before, _), start_s, queues = _queue(near), time.monotonic(), []
        for _ in range(SAMPLES):
            time.sleep(MEASURE_S / SAMPLES)
            queues.append(_queue(near)[1])
        sent = _queue(near)[0] - before
        return sent * 8 / (time.monotonic() - start_s) / RATE, mean(queues)


def compare(congestion: str, flows: int) -> Result:
    """Measure a cell in the model and over the kernel."""
    ours, kernel = simulate(congestion, flows), measure(congestion, flows)
    return {"id": f"{flows}-{congestion}", "value": ours[0], "unit": "of the line",
            "reference": kernel[0], "ratio": ours[0] / kernel[0], "queue_bytes": ours[1],
            "reference_queue_bytes": kernel[1], "ok": True}


def line(row: Result) -> str:
    """Write a cell."""
    queue, kernels = row["queue_bytes"], row["reference_queue_bytes"]
    return (f"{row['id']:8} rate {row['value']:.2f} / {row['reference']:.2f} = {row['ratio']:.2f}  "
            f" queue {queue / 1e3:.0f} / {kernels / 1e3:.0f} KB = {queue / kernels:.2f}")


ROWS = by_id(Row(f"{flows}-{congestion}", f"rate and queue of {flows} {congestion.upper()}",
                 partial(compare, congestion, flows), reference="the kernel")
             for congestion in ("cubic", "bbr") for flows in (1, 4))
SUBJECT = Subject(__doc__ or "", ROWS, each, header="", line=line)
