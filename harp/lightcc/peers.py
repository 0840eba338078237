"""The connections of a group of ranks: two to each other rank, made when the group is made.

Ranks publish where they listen in a store (`harp.lightcc.store`). Ranks that share a host and its
network connect over memory (``mem``), others over the network (``ports.py``); HARP_PORT chooses one
port for all. A rank that cannot make the group says why in the store, and the others, which look
there now and then, end with its sentence. So they do where a rank dies meanwhile (`heartbeat.py`).

One connection of a pair carries the pieces of collectives, the other one messages that may come at
any time: data between two ranks, and news that the group has failed. Each has an engine of its own:
the thread that waits for a collective drives the first, a listening thread the second. Between
ranks of one host pieces go straight through memory (`mover.py`) where nothing forbids it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harp.first_line import first_line
from harp.lightcc.failure import GroupError, name_ranks
from harp.lightcc.heartbeat import SILENT_TURNS, Heartbeat
from harp.lightcc.mover import Direct
from harp.lightcc.ports import open_memory, open_network, open_p2p, read_port
from harp.net.channel import ConnectionChannel
from harp.net.errors import EndedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from harp.net import Connection, Engine, Listener

    Bytes = NDArray[np.uint8]

PIECES, P2P = KINDS = b"pieces", b"p2p"
WARN_AFTER_S = 60.0
"""A group that is not made for this long, or half its timeout, names the ranks that it waits for;
60 s is Horovod's HOROVOD_STALL_CHECK_TIME_SECONDS."""
FAILED_KEY = "failed"
LOOK_S, LOOKS_PER_S = 0.5, 1000
"""While the group is made each rank looks so often whether another one has failed, and all together
no more often than the second says: a small part of the requests that a store can answer."""
SAY_S = 5.0
"""A rank tries for so long to say that it fails, or is ready."""
PROCESS = -1
"""Where the value of a rank's place names its process."""
log = logging.getLogger("harp.lightcc")


class PeerChannel(ConnectionChannel):
    """A channel whose errors name the peer."""

    def __init__(self, peer: int, connection: Connection) -> None:
        super().__init__(connection)
        self._peer = peer

    async def send(self, piece: Bytes) -> None:
        """Take a piece."""
        try:
            await super().send(piece)
        except EndedError as error:
            raise self._gone_error(error) from error

    async def take(self) -> Bytes:
        """Give the next piece."""
        try:
            return await super().take()
        except EndedError as error:
            raise self._gone_error(error) from error

    def _gone_error(self, error: EndedError) -> GroupError:
        return GroupError(f"rank {self._peer} is gone: {error}")


class Store(Protocol):
    """The store in which ranks find each other."""

    def set(self, key: str, value: bytes) -> object:
        """Set a key for all ranks."""

    def get(self, key: str) -> bytes:
        """Wait until the key is set, and give its value."""

    def has(self, key: str) -> bool:
        """Whether the key is set."""


@contextlib.contextmanager
def telling_others(rank: int, ranks: int, store: Store) -> Iterator[None]:
    """Put into the store why this rank fails here; the first rank that does so speaks for all."""
    def say(why: str) -> None:
        with contextlib.suppress(Exception):  # the store may be what failed
            if not store.has(FAILED_KEY):
                store.set(FAILED_KEY, f"rank {rank}: {why}".encode())
            if rank == 0:  # its process may have the store: the others look before it ends
                time.sleep(2 * look_s(ranks))
    try:
        yield
    except BaseException as error:
        if ranks > 1:  # a daemon: the store may not answer
            saying = threading.Thread(target=say, args=(first_line(error),), daemon=True)
            saying.start()
            saying.join(SAY_S + 2 * look_s(ranks))
        raise


def look_s(ranks: int) -> float:
    """Return the time between two looks of a rank for a failure of others."""
    return max(LOOK_S, ranks / LOOKS_PER_S)


class Peers:
    """Engines and connections of one rank of one group.

    Args:
        rank: the number of this rank.
        ranks: the number of ranks.
        store: where the ranks find each other.
        timeout_s: how long the group may take to be made.
        environment: has HARP's variables.
        find_gone: gives the ranks that are known not to come, each with the reason.

    """

    def __init__(self, rank: int, ranks: int, store: Store, timeout_s: float,
                 environment: Mapping[str, str] = os.environ,
                 find_gone: Callable[[], Mapping[int, str]] = dict) -> None:
        self.rank, self.ranks = rank, ranks
        self._store, self._timeout_s = store, timeout_s
        self._heartbeat, self._find_gone = Heartbeat(rank, ranks, store), find_gone
        self._engines: dict[tuple[bytes, str], Engine] = {}
        self._port = read_port(environment)
        self._environment = environment
        self._asking: set[threading.Thread] = set()
        self._place = b""
        """This rank's value in the store; another one where two processes have its rank."""
        self._missing: set[int] = set()
        """Ranks that have not come yet while the group is made."""
        self.places: list[str] = []
        """The place of each rank: ranks with the same one share memory."""
        self.pieces: dict[int, Connection] = {}
        """The connections for collectives (`harp.lightcc.mover`)."""
        self.direct = Direct(ranks, environment)
        """The memory for pieces between ranks of this host."""
        self.p2p: dict[int, PeerChannel] = {}
        """The channels for messages between two ranks and for failures."""

    async def connect(self) -> None:
        """Open all connections. Raises the network's errors; GroupError names missing ranks."""
        loop = asyncio.get_running_loop()
        warning = loop.call_later(min(WARN_AFTER_S, self._timeout_s / 2), self._warn_of_missing)
        try:
            await asyncio.wait_for(self._connect_or_hear(), self._timeout_s)
        except asyncio.TimeoutError:
            for thread in self._asking:
                thread.join(1)  # else it may ask on while the process ends
            late = sorted(self._missing)
            raise GroupError(f"the group was not made within {self._timeout_s:g} s: rank"
                             f"{'s' if len(late) > 1 else ''} {', '.join(map(str, late))} did not "
                             "come") from None
        finally:
            warning.cancel()

    async def _connect_or_hear(self) -> None:
        """Open all connections, unless another rank fails or dies."""
        await self._ask_store(self._heartbeat.beat)
        works = [asyncio.ensure_future(work) for work in (
            self._connect_all(), self._look_for_failure(), self._look_for_dead())]
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            next(work for work in works if work.done()).result()
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
        await asyncio.wait([asyncio.ensure_future(self._ask_store(self._heartbeat.be_ready))],
                           timeout=SAY_S)  # the store may not answer, and is not needed any more

    async def _look_for_failure(self) -> None:
        while True:
            await asyncio.sleep(look_s(self.ranks))
            for rank, why in self._find_gone().items():
                if rank not in self.p2p or rank not in self.pieces:  # else it has made the group
                    raise GroupError(f"rank {rank} {why}")
            if await self._ask_store(lambda: self._store.has(FAILED_KEY)):
                why = await self._ask_store(lambda: self._store.get(FAILED_KEY))
                raise GroupError(why.decode())
            place = await self._ask_store(lambda: self._store.get(f"place/{self.rank}"))
            if place != self._place:
                both = (json.loads(one)[PROCESS] for one in (place, self._place))
                raise GroupError(f"two processes have rank {self.rank}: " + " and ".join(both))

    async def _look_for_dead(self) -> None:
        turn_s = max(look_s(self.ranks), self.dead_s / SILENT_TURNS)
        silent_s = turn_s * SILENT_TURNS
        while True:
            await asyncio.sleep(turn_s)
            turn = asyncio.ensure_future(self._ask_store(self._heartbeat.take_turn))
            for _ in range(SILENT_TURNS):  # not at once, where this process was stopped meanwhile
                if (await asyncio.wait([turn], timeout=turn_s))[0]:
                    break
            else:
                turn.cancel()
                raise GroupError(f"the store has not answered for {silent_s:g} s: rank 0 or the "
                                 "launcher, whichever has it, is stopped, or its host is gone")
            if (dead := turn.result()) is not None:
                raise GroupError(f"rank {dead} is gone: it came to make the group, and was silent "
                                 f"for {silent_s:g} s")

    def _warn_of_missing(self) -> None:
        if self._missing:
            log.warning("a group of %d ranks still waits for %s; each of its ranks must make it, "
                        "in the same order as other groups", self.ranks,
                        name_ranks(sorted(self._missing)))

    async def _connect_all(self) -> None:
        kinds = await self._find_kinds()
        listeners = {(peer, which): self._engine_for(which, kind).listen(dead_after=self.dead_s)
                     for peer, kind in kinds.items() if peer > self.rank for which in KINDS}
        handles = json.dumps({f"{which.decode()} {peer}": listener.handle.to_bytes().hex()
                              for (peer, which), listener in listeners.items()}).encode()
        try:
            await self._ask_store(lambda: self._store.set(f"handles/{self.rank}", handles))
            await asyncio.gather(
                *(self._accept_peer(peer, which, listener)
                  for (peer, which), listener in listeners.items()),
                *(self._connect_peer(peer, kind) for peer, kind in kinds.items()
                  if peer < self.rank))
        finally:
            for listener in listeners.values():
                listener.close()

    async def _read_store(self, key: str) -> Any:
        """Wait for a key of the store, and return its value."""
        return json.loads(await self._ask_store(lambda: self._store.get(key)))

    async def _ask_store(self, question: Callable[[], Any]) -> Any:
        """Give the store's answer; the loop goes on in the meantime."""
        loop = asyncio.get_running_loop()
        came: asyncio.Future[Any] = loop.create_future()

        def settle(finish: Callable[[Any], None], value: Any) -> None:
            if not came.done():
                finish(value)

        def ask() -> None:
            try:
                value: Any = question()
                finish = came.set_result
            except Exception as error:  # it is raised where it is awaited
                finish, value = came.set_exception, error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, finish, value)
        # A daemon: an executor's thread would be joined when the process ends.
        thread = threading.Thread(target=ask, daemon=True, name="lightcc store")
        self._asking.add(thread)
        thread.start()
        answer = await came
        self._asking.discard(thread)
        return answer

    async def _find_kinds(self) -> dict[int, str]:
        """Choose how to reach each other rank."""
        self._place = json.dumps([memory_place(), self.direct.open(), self._port, self.ranks,
                                  f"process {os.getpid()} of {socket.gethostname()}"]).encode()
        await self._ask_store(lambda: self._store.set(f"place/{self.rank}", self._place))
        found = []
        for rank in range(self.ranks):
            self._missing = {rank}
            *place, ranks, _ = await self._read_store(f"place/{rank}")
            self._check_ranks(rank, ranks)
            found.append(place)
        self._missing = set(range(self.ranks)) - {self.rank}
        self.places = [place for place, *_ in found]
        check_ports([port for *_, port in found], self.places)
        here = self.places[self.rank]
        kinds = {peer: link_kind(self._port, same_host=place == here)
                 for peer, place in enumerate(self.places) if peer != self.rank}
        for peer, kind in kinds.items():
            if kind == "mem":
                self.direct.meet(peer, found[peer][1])
        return kinds

    def _check_ranks(self, rank: int, ranks: int) -> None:
        """Refuse another number of ranks: some would wait for ranks that nobody starts."""
        if ranks != self.ranks:
            raise ValueError(f"ranks do not agree on how many they are: {self.ranks} at rank "
                             f"{self.rank}, {ranks} at rank {rank}")

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return len(set(self.places))

    @property
    def dead_s(self) -> float:
        """A rank that is silent for this long counts as dead."""
        return max(1.0, min(self._timeout_s, 30.0))

    def _engine_for(self, which: bytes, kind: str) -> Engine:
        """Return the engine: P2P's has a thread; the thread that waits drives that of pieces."""
        if (which, kind) not in self._engines:
            name = f"lightcc {self.rank} {which.decode()}"
            if which == P2P:
                opened = open_p2p(self._environment, name, mem=kind == "mem")
            elif kind == "mem":
                opened = open_memory(self._environment, name)
            else:
                opened = open_network(self._environment, name)
            self._engines[which, kind] = opened
        return self._engines[which, kind]

    async def _accept_peer(self, peer: int, which: bytes, listener: Listener) -> None:
        self._keep_connection(peer, await listener.accept_async(), which)
        if which == PIECES:
            self.direct.link(peer)

    async def _connect_peer(self, peer: int, kind: str) -> None:
        handles = await self._read_store(f"handles/{peer}")
        self.direct.link(peer)  # so it is there when the peer has accepted the first connection
        for which in KINDS:
            handle = bytes.fromhex(handles[f"{which.decode()} {self.rank}"])
            self._keep_connection(peer, await self._engine_for(which, kind).connect_async(
                handle, dead_after=self.dead_s), which)

    def _keep_connection(self, peer: int, connection: Connection, which: bytes) -> None:
        if which == PIECES:
            self.pieces[peer] = connection
        else:
            self.p2p[peer] = PeerChannel(peer, connection)
        if peer in self.p2p and peer in self.pieces:
            self._missing.discard(peer)

    @property
    def engines(self) -> list[Engine]:
        """The engines of pieces; the thread that waits for pieces drives them."""
        return [engine for (which, _), engine in self._engines.items() if which == PIECES]

    async def flush(self, timeout_s: float) -> None:
        """Wait for a while until the ranks that are there have the messages to them."""
        for channel in self.p2p.values():
            with contextlib.suppress(EndedError, asyncio.TimeoutError):
                await asyncio.wait_for(channel.flush(), timeout_s)

    def close(self) -> None:
        """End all connections."""
        self.pieces.clear()
        self.p2p.clear()
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()
        self.direct.close()


def link_kind(port: str, *, same_host: bool) -> str:
    """Say how a rank with this HARP_PORT reaches another one: over memory or the network."""
    return "mem" if port == "mem" or (port == "auto" and same_host) else "network"


def check_ports(ports: Sequence[str], places: Sequence[str]) -> None:
    """Refuse what ranks' HARP_PORT, each in its place, cannot do together; all ranks find it alike.

    Raises:
        ValueError: in one sentence that names the ranks.

    """
    if "mem" in ports and len(set(places)) > 1:
        raise ValueError("HARP_PORT is mem, but the ranks are on several hosts; auto takes mem "
                         "within a host, and udp or xdp between them")
    for one, port in enumerate(ports):
        for other in range(one):
            same = places[one] == places[other]
            kinds = {link_kind(name, same_host=same) for name in (port, ports[other])}
            if len(kinds) > 1 or (kinds == {"network"} and (port == "tcp") != (
                    ports[other] == "tcp")):
                raise ValueError(_describe_ports(ports))


def _describe_ports(ports: Sequence[str]) -> str:
    of = {port: [rank for rank, found in enumerate(ports) if found == port] for port in ports}
    return ("ranks do not agree on HARP_PORT: " + ", ".join(
        f"it is {port} at {name_ranks(ranks)}" for port, ranks in of.items())
        + "; of these only auto, udp and xdp go together, and between hosts alone")


def memory_place() -> str:
    """Name the place that shares memory: this boot of this host, its namespaces and the user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("net", "user")]
    return json.dumps([boot, *spaces, Path("/dev/shm").stat().st_dev, os.geteuid()])
