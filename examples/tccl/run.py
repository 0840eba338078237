"""Planned paths from end to end: probe, plan, run, lose a spine, plan anew, run on, diagnose.

    sudo python examples/tccl/run.py

Namespaces make two racks of four hosts under four spines of Linux routers, which hash addresses
and ports; tbf gives every cable 40 Mb/s. Three hosts of one rack send 4 MB to three of the other,
all at once, by HARP engines over UDP. At the end six hosts send to one another, a cable fails in
one direction, and `harp diagnose` has to say which. All is gone afterwards, in under a minute.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from harp.cli.main import harp
from harp.net import Engine
from harp.routing.deployment import Deployment
from lab.wiring import Wiring, why_unusable
from sim.cluster.cluster import Cluster
from sim.schema.job import load_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from harp.net import Completion, Connection
    from harp.routing.fabric import Fabric

HERE = Path(__file__).resolve().parent
JOB = HERE / "job.yaml"
MESSAGE = bytes(4 << 20)
PIECE = bytes(64 << 10)
PATIENCE_S = 60
LOOKED_AT_S = 900
"""How long a silent peer is waited for while hosts are looked at, however busy they are."""


def say(text: str) -> None:
    """Print a step."""
    click.secho(f"\n{text}", bold=True)


def call(*words: str) -> None:
    """Run a command of HARP's, as a shell would."""
    click.echo("$ harp " + " ".join(Path(word).name for word in words))
    harp(list(words), standalone_mode=False)


class Job:
    """The ranks' engines in their namespaces, and a connection for each flow of the plan."""

    def __init__(self, stack: ExitStack, wiring: Wiring, plan: Deployment, *,
                 planned: bool) -> None:
        self.wiring, self.plan = wiring, plan
        self.engines: list[Engine] = []
        for rank in plan.ranks:
            address = rank.listen[0] if planned else rank.listen[0].partition(":")[0]
            with wiring.hosts[rank.rank].entered():
                self.engines.append(stack.enter_context(Engine("udp", address=address)))
        self.pairs = [self._connect(flow.sender, flow.receiver, planned=planned)
                      for flow in plan.flows]

    def _connect(self, sender: int, receiver: int, *,
                 planned: bool) -> tuple[Connection, Connection]:
        listener = self.engines[receiver].listen()
        with self.wiring.hosts[sender].entered():
            near = self.engines[sender].connect(
                listener.handle, timeout=PATIENCE_S,
                flows=self.plan.flows_of(sender) if planned else ())
        return near, listener.accept(timeout=PATIENCE_S)

    def run(self) -> float:
        """Send a message by every flow at once; seconds until all have come."""
        began_s = time.perf_counter()
        posted = [far.post(bytearray(len(MESSAGE))) for _, far in self.pairs]
        for near, _ in self.pairs:
            near.send(MESSAGE)
        for one in posted:
            one.wait(PATIENCE_S)
        return time.perf_counter() - began_s

    def follow(self, plan: Deployment) -> int:
        """Deliver another revision of the plan, as HARP's plugin does when the file changes."""
        moved = 0
        for flow, (near, _) in zip(plan.flows, self.pairs, strict=True):
            with self.wiring.hosts[flow.sender].entered():
                moved += near.follow(plan.flows_of(flow.sender))
        return moved


def show(wiring: Wiring, fabric: Fabric, job: Job) -> None:
    """Run the job once, and print how long it took and what the first rack's routers counted."""
    before = wiring.sent_bytes()
    seconds = job.run()
    carried = wiring.sent_bytes() - before
    ways = [f"spine{spine} {carried[fabric.links_between('leaf0', f'spine{spine}')[0]] / 1e6:.1f}"
            for spine in range(4)]
    click.echo(f"{seconds:5.2f} s; MB by {', '.join(ways)}")


def fail_spine(wiring: Wiring, fabric: Fabric, spine: str) -> None:
    """Take all cables of a spine down, and let the routers notice, as their link state would."""
    dead = fabric.nodes[spine]
    down = np.flatnonzero((fabric.link_src == dead) | (fabric.link_dst == dead))
    share = np.ones(len(fabric.link_src))
    share[down] = 0.0
    wiring.shape(down.tolist(), share)
    wiring.route(fabric.without(down))


class Chatter:
    """Ranks that all send to one another, again and again, while somebody looks at them."""

    def __init__(self, stack: ExitStack, wiring: Wiring, ranks: int) -> None:
        engines = []
        for rank in range(ranks):
            with wiring.hosts[rank].entered():
                engines.append(stack.enter_context(Engine("udp", address=wiring.address(rank))))
        self._pairs = []
        for sender, receiver in permutations(range(ranks), 2):
            listener = engines[receiver].listen(dead_after=LOOKED_AT_S)
            with wiring.hosts[sender].entered():
                near = engines[sender].connect(listener.handle, timeout=PATIENCE_S,
                                               dead_after=LOOKED_AT_S)
            self._pairs.append((near, listener.accept(timeout=PATIENCE_S)))
        self._under_way: list[Completion | None] = [None] * len(self._pairs)

    def go_on(self, done: Callable[[], bool]) -> None:
        """Send by each connection whatever has arrived, until it is done."""
        while not done():
            for number, (near, far) in enumerate(self._pairs):
                posted = self._under_way[number]
                if posted is None or posted.done():
                    self._under_way[number] = far.post(bytearray(len(PIECE)))
                    near.send(PIECE)
            time.sleep(1e-3)


def shape_cable(wiring: Wiring, fabric: Fabric, host: int, share: float) -> None:
    """Let a host send at a share of its rate; what is sent to it comes as before."""
    link = int(fabric.endpoint_ports[host][0])
    shares = np.ones(len(fabric.link_src))
    shares[link] = share
    wiring.shape([link], shares)


def diagnose(wiring: Wiring, chatter: Chatter, ranks: int, folder: Path) -> None:
    """Have all hosts look at themselves at the same time, and read what they say."""
    files = [str(folder / f"host-{rank}.json") for rank in range(ranks)]

    def look(rank: int) -> None:
        with wiring.hosts[rank].entered():
            harp(["diagnose", "--snapshot", files[rank], "--name", f"host-{rank}"],
                 standalone_mode=False)

    click.echo("$ harp diagnose --snapshot host-0.json --name host-0    # and so on each host")
    with ThreadPoolExecutor(ranks) as pool:
        looks = [pool.submit(look, rank) for rank in range(ranks)]
        chatter.go_on(lambda: all(each.done() for each in looks))
        for each in looks:
            each.result()
    call("diagnose", *files)


@click.command(help=__doc__.replace("\n\n    sudo", "\n\n\b\n    sudo"))
def main() -> None:
    """Show all of it."""
    if why := why_unusable():
        raise click.ClickException(f"this example {why}")
    _, topology = load_job(JOB)
    fabric = Cluster(topology).fabric
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plan_file = folder / "plan.json"
        say("Two racks under four spines, as namespaces")
        wiring = stack.enter_context(closing(Wiring(fabric, 1.0, 1500)))

        say("1. Probe: which path does each source port take?")
        with wiring.hosts[0].entered():
            call("probe", wiring.address(4), "--ports", "61256-61279", "--source",
                 wiring.address(0), "-o", str(folder / "map.json"))

        say("2. Plan: source ports, so that no two flows meet")
        call("plan", str(JOB), "-o", str(plan_file))
        plan = Deployment.from_json(plan_file.read_text("utf-8"))

        say("3. Run, with ports as they come (hashed): three jobs")
        for _ in range(3):
            with ExitStack() as engines:
                show(wiring, fabric, Job(engines, wiring, plan, planned=False))

        say("4. Run as planned")
        job = Job(stack, wiring, plan, planned=True)
        show(wiring, fabric, job)

        say("5. A spine is lost while the job lives, and routers hash over three")
        fail_spine(wiring, fabric, "spine1")
        show(wiring, fabric, job)

        say("6. Plan anew, and deliver: connections go on")
        call("plan", str(JOB), "--replan", str(plan_file), "--without", "spine1")
        moved = job.follow(Deployment.from_json(plan_file.read_text("utf-8")))
        click.echo(f"{moved} paths moved to another UDP port")
        show(wiring, fabric, job)
        call("plan", str(JOB), "--check", str(plan_file))

        say("7. Six hosts send to one another: what is wrong with that job?")
        ranks = 6
        chatter = Chatter(stack, wiring, ranks)
        began_s = time.monotonic()
        chatter.go_on(lambda: time.monotonic() - began_s > 1)
        diagnose(wiring, chatter, ranks, folder)

        say("8. A cable of host-2 carries nothing any more, but only what the host sends")
        shape_cable(wiring, fabric, 2, 0.0)
        diagnose(wiring, chatter, ranks, folder)


if __name__ == "__main__":
    main()
