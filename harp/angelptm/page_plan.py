"""Plan moves of pages: a pure function of a step's trace, the tiers' capacities and their rates.

A step is a list of events, which need pages on the device, and of jobs (updates of the optimizer),
which need pages in memory, be it the device's or the host's. A plan
is a list of actions, moves and jobs, that a second thread does one after another beside the events:

    events    | 0 | 1 | 2 | waits | 3 | ...        an event waits for the actions it needs
    actions   load, load | evict, load | job ...   an action waits for the events it comes after

An event needs the last move and the last job of each of its pages, and what comes before these; so
the backward pass waits for no update or reduction of pages that it has left behind.

Every page is in one place, so the capacity is the sum of the tiers. A page that is needed evicts
the one whose next use is furthest away, in this step or the next (Belady, IBM Systems Journal 5(2),
1966, which needs the fewest loads). That page has often been used just now, and then its place
cannot be filled while it is in use: so pages of the last ``ahead`` events stay, and loads begin so
much earlier. `plan` tries several such distances and takes the fastest by `estimate`.

A slot that a page has left upwards has its content until another page takes it. A page that nothing
has changed meanwhile goes back there, and nothing is copied: parameters in the forward pass, and
what gathers read from a disk. An update changes its pages: one that will leave the device before
its next use goes back before the update, unless the device has all pages of that.

Of several ranks (`Sharing`) each has the same plan. A page of the window is nowhere until it is
needed. Then it is gathered from all ranks, or, where it is a gradient's, comes empty; it goes when
its content is old or has been reduced. All ranks make gathers and reductions in the plan's order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

DEVICE, HOST, DISK, NOWHERE = range(4)
TIERS = ("device", "host", "disk")
AHEAD = (0, 1, 2, 4, 8, 16)
"""Distances that are tried."""
RESERVE = 8
"""Pages of the host that stay free where a disk is used: most reads under way."""

Place = tuple[int, int]
"""A tier and a slot of it; what is nowhere has its own number as its slot."""
Placement = tuple[Place, ...]
"""The tier and slot of each page."""


class CapacityError(RuntimeError):
    """The tiers cannot hold what a step needs at once; the message is one sentence."""


UPDATE, REDUCE = "update", "reduce"
FAR = 1 << 60
"""Later than any event."""


@dataclass(frozen=True)
class Sharing:
    """The window that several ranks share: pages of parameters, then as many of gradients."""

    shown: int
    ranks: int
    drops: bool
    """Whether a parameter's page that makes room is gathered again: ZeRO 3."""

    def source(self, page: int) -> int | None:
        """The page that a gather of this one reads; none, if it comes empty."""
        return 2 * self.shown + page // self.ranks if page < self.shown else None


@dataclass(frozen=True)
class Event:
    """Something that needs these pages on the device at once."""

    pages: tuple[int, ...]
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Job:
    """An update or a reduction that needs these pages in memory, once an event is over."""

    pages: tuple[int, ...]
    after: int
    chunk: int
    """Of an update; of a reduction the page of the window."""
    seconds: float = field(default=0.0, compare=False)
    kind: str = UPDATE
    before: int = FAR
    """The event that must wait for it."""
    drops: tuple[int, ...] = ()
    """Pages that are nowhere from then on."""

    @property
    def late(self) -> bool:
        """Whether it updates by the step before: events may use its pages until it is due."""
        return self.kind == UPDATE and self.before != FAR


@dataclass(frozen=True)
class Trace:
    """A step."""

    events: tuple[Event, ...]
    jobs: tuple[Job, ...] = ()
    scratch: frozenset[int] = frozenset()
    """Pages that are not needed after their job, until an event writes them."""
    read: frozenset[int] = frozenset()
    """Pages that events do not change."""
    sharing: Sharing | None = None


@dataclass(frozen=True)
class Capacities:
    """Pages that each tier holds."""

    device: int
    host: int
    disk: int = 0

    def __getitem__(self, tier: int) -> int:
        return (self.device, self.host, self.disk)[tier]


@dataclass(frozen=True)
class Rates:
    """Pages a second, between device and host, of the disk, and from and to other ranks.

    An engine measures them when it begins (`Cache.measure`). The defaults stand for what it has not
    used yet; they are guesses without a source, of low confidence: with pages of 4 MiB, 4.2 GB/s of
    copies, 1.05 GB/s of an SSD, and as much of a network. Rates only choose among plans: whichever
    is taken, its step has the same bits.
    """

    copy: float = 1000.0
    disk: float = 250.0
    network: float = 250.0


@dataclass(frozen=True)
class Move:
    """Bring a page from one place to another."""

    page: int
    source: Place
    target: Place
    after: int
    """The last event that may use the page at its source; -1: none does."""
    empty: bool
    """Whether the content is of no use, so that nothing need be copied."""
    start: int = 0
    """Of a move from or to the disk: the actions that must be over before it begins."""
    kept: bool = False
    """Whether the target has the content still, so that nothing need be copied."""

    @property
    def copies(self) -> bool:
        """Whether it takes a copy, or a read or a write."""
        return not (self.empty or self.kept)

    @property
    def by_disk(self) -> bool:
        """Whether it takes a read or a write."""
        return DISK in {self.source[0], self.target[0]} and self.copies

    @property
    def gathers(self) -> bool:
        """Whether it takes all ranks."""
        return self.source[0] == NOWHERE and not self.empty


@dataclass(frozen=True)
class Plan:
    """The actions of a step."""

    actions: tuple[Move | Job, ...]
    need: tuple[int, ...]
    """For each event, how many actions must be over before it."""
    end: Placement
    ahead: int = 0

    @property
    def moves(self) -> list[Move]:
        """The actions that are moves."""
        return [action for action in self.actions if isinstance(action, Move)]


class Slots:
    """Free slots of a tier; some have the content of the page that was there.

    The one that became free first is used first: its last read or write is over soonest.
    """

    def __init__(self, slots: Iterable[int]) -> None:
        self._free: dict[int, int | None] = dict.fromkeys(slots)
        """In their order, each with the page of its content."""
        self._left: dict[int, int] = {}
        """The slot with a page's content."""

    def __len__(self) -> int:
        """Count them."""
        return len(self._free)

    def __contains__(self, page: int) -> bool:
        """Whether one has a page's content."""
        return page in self._left

    def take(self, page: int) -> tuple[int, bool]:
        """Give a slot for a page, and whether it has the page's content."""
        kept = page in self
        slot = self._left[page] if kept else next(iter(self._free))
        if (content := self._free.pop(slot)) is not None:
            del self._left[content]
        return slot, kept

    def give(self, slot: int, page: int | None) -> None:
        """Have a slot back, with the content of a page if one is named."""
        self._free[slot] = page
        if page is not None:
            self._left[page] = slot

    def forget(self, page: int) -> None:
        """Hear that a page has other content."""
        if page in self:
            self._free[self._left.pop(page)] = None


class Space(ABC):
    """Places of pages, and free slots. Makes room by moving pages down."""

    def __init__(self, capacities: Capacities, placement: Iterable[Place],
                 sharing: Sharing | None = None) -> None:
        self.capacities, self.sharing = capacities, sharing
        self.where = list(placement)
        self.held: list[set[int]] = [set(), set(), set(), set()]
        taken = set(self.where)
        self.free = [Slots(slot for slot in range(capacities[tier]) if (tier, slot) not in taken)
                     for tier in range(3)]
        for page, (tier, _) in enumerate(self.where):
            self.held[tier].add(page)

    @abstractmethod
    def next_use(self, page: int, tier: int) -> float:
        """Next use of a page, if it were to leave this tier."""

    @abstractmethod
    def moved(self, page: int, source: Place, target: Place, *, kept: bool) -> None:
        """Hear of a move; whether the target has the content still."""

    def leaves(self, page: int, source: Place, target: Place) -> bool:
        """Whether the content of a page that moves is of use where it was."""
        del page, source, target
        return False

    def move(self, page: int, tier: int, keep: Sequence[set[int]]) -> None:
        """Move a page, and make room for it.

        Pages to keep stay where they are; the last set counts least.
        """
        if tier < NOWHERE:
            self.make_room(tier, 1, keep)
        source = self.where[page]
        slot, kept = self.free[tier].take(page) if tier < NOWHERE else (page, False)
        self.where[page] = target = (tier, slot)
        self.held[source[0]].remove(page)
        self.held[tier].add(page)
        if source[0] < NOWHERE:
            self.free[source[0]].give(source[1],
                                      page if self.leaves(page, source, target) else None)
        self.moved(page, source, target, kept=kept)

    def make_room(self, tier: int, slots: int, keep: Sequence[set[int]]) -> None:
        """Free slots until this many are free."""
        while len(self.free[tier]) < slots:
            page = self.victim(tier, keep)
            self.move(page, NOWHERE if self._drops(page) else tier + 1, keep)

    def drop(self, pages: Iterable[int]) -> None:
        """Have pages nowhere."""
        for page in pages:
            if self.where[page][0] < NOWHERE:
                self.move(page, NOWHERE, [])

    def source(self, page: int) -> int | None:
        """The page that a gather of this one reads, if it is gathered."""
        return self.sharing.source(page) if self.sharing else None

    def _drops(self, page: int) -> bool:
        return self.sharing is not None and self.sharing.drops and page < self.sharing.shown

    def victim(self, tier: int, keep: Sequence[set[int]]) -> int:
        """Choose a page to leave."""
        if tier < DISK:
            below = self.sharing is None or any(self.free[lower] for lower in range(tier + 1, 3))
            for kept in (set().union(*keep[:number]) for number in range(len(keep), 0, -1)):
                found = self.held[tier] - kept
                if not below:
                    found = {page for page in found if self._drops(page)}
                if found:
                    return max(found, key=lambda page: (self.next_use(page, tier), page))
        raise CapacityError(f"{len(self.where)} pages do not fit into {self.capacities.device} of "
                            f"the device, {self.capacities.host} of the host and "
                            f"{self.capacities.disk} on disk, and some stay free to move "
                            f"others: the {TIERS[tier]} is full")

    def bring(self, pages: Iterable[int], lowest: int, keep: Sequence[set[int]]) -> None:
        """Have pages in a tier or above it."""
        for page in pages:
            if lowest < self.where[page][0] == NOWHERE:
                self._fetch(page, min(lowest, HOST), keep)
            while self.where[page][0] > lowest:
                self.move(page, self.where[page][0] - 1, keep)

    def _fetch(self, page: int, lowest: int, keep: Sequence[set[int]]) -> None:
        """Have a page that is nowhere; a gather reads this rank's part of it."""
        if (source := self.source(page)) is not None:
            full = not self.free[DEVICE] and self.held[DEVICE] <= keep[0] | {source}
            keep = [keep[0] | {source}, *keep[1:]]
            self.bring([source], HOST, keep)
            if full and self.where[source][0] == DEVICE:
                self.move(source, HOST, keep)
        self.move(page, lowest, keep)


class _Horizon:
    """How far ahead the device has room for all that events use, in this step or the next."""

    def __init__(self, order: Sequence[Event | Job], room: int) -> None:
        self._used = [item.pages if isinstance(item, Event) else () for item in order]
        self._room, self._pages = room, Counter[int]()
        self.end = 0
        """The first time that is beyond it."""

    def advance(self, time: int) -> None:
        """Come from one item of the order to the next."""
        for page in self._used[time - 1] if time else ():
            self._pages[page] -= 1
            if not self._pages[page]:
                del self._pages[page]
        while self.end < time + len(self._used):
            pages = self._used[self.end % len(self._used)]
            more = sum(page not in self._pages for page in pages)
            if self.end > time and len(self._pages) + more > self._room:
                break
            self._pages.update(pages)
            self.end += 1


class _Planner(Space):
    """Goes through a step once."""

    def __init__(self, trace: Trace, capacities: Capacities, placement: Placement,
                 ahead: int, home: Placement | None) -> None:
        super().__init__(capacities, placement, trace.sharing)
        self.trace, self.ahead, self.home = trace, ahead, home
        self.order = _merged(trace, ahead)
        self.horizon = _Horizon(self.order, capacities.device)
        self.uses: list[list[list[int]]] = [[[] for _ in placement] for _ in range(2)]
        for time, item in enumerate(self.order):
            for page in item.pages:
                self.uses[HOST][page].append(time)
                if isinstance(item, Event):
                    self.uses[DEVICE][page].append(time)
                    if (source := self.source(page)) is not None:
                        self.uses[HOST][source].append(time)
        self.time = 0
        self.dead = set(trace.scratch).difference(
            *(job.pages for job in trace.jobs if job.late))
        self.waiting = Counter(page for job in trace.jobs for page in job.pages)
        """Of each page, the jobs that are to come: one of two chunks has two."""
        self.last_event: dict[int, int] = {}
        self.actions: list[Move | Job] = []
        self.touched: dict[Place, int] = {}
        self.ready = [0] * len(placement)
        """Of each page, how many actions must be over before an event uses it."""
        self.due: list[tuple[int, int]] = []
        """Of each job that an event waits for: the event, and the actions up to the job."""

    def next_use(self, page: int, tier: int) -> float:
        uses = self.uses[tier][page]
        at = bisect_right(uses, self.time)
        if at < len(uses):
            return uses[at]
        return uses[0] + len(self.order) if uses else float("inf")

    def leaves(self, page: int, source: Place, target: Place) -> bool:
        return target[0] < source[0] and page not in self.dead

    def change(self, pages: Iterable[int]) -> None:
        """Hear that pages have other content."""
        for page in pages:
            for slots in self.free:
                slots.forget(page)

    def moved(self, page: int, source: Place, target: Place, *, kept: bool) -> None:
        start = max(self.touched.get(source, 0), self.touched.get(target, 0))
        after = self.last_event.get(page, -1) if source[0] == DEVICE else -1
        empty = page in self.dead or target[0] == NOWHERE
        if source[0] == NOWHERE:
            own = self.source(page)
            empty = own is None
            if own is not None:
                self.touched[self.where[own]] = len(self.actions) + 1
        if NOWHERE in {source[0], target[0]}:
            self.change([page])
        self.actions.append(Move(page, source, target, after, empty, start, kept))
        self.ready[page] = len(self.actions)
        self.touched[source] = self.touched[target] = len(self.actions)

    def run(self) -> Plan:
        """Make the plan."""
        need: list[int] = []
        recent: deque[set[int]] = deque(maxlen=self.ahead)
        for time, item in enumerate(self.order):
            self.time = time
            self.horizon.advance(time)
            now = set(item.pages)
            keep = [now, *reversed(recent)]
            if isinstance(item, Event):
                self.bring(item.pages, DEVICE, keep)
                self.last_event.update(dict.fromkeys(item.pages, len(need)))
                self.dead -= now
                self.change(now - self.trace.read)
                need.append(max([*need[-1:], *self._needs(len(need), now)], default=0))
                recent.append(now)
            else:
                self.bring(item.pages, HOST, keep)
                self.leave_unchanged(item, keep)
                self.actions.append(item)
                self.due.append((item.before, len(self.actions)))
                for page in () if item.late else now:
                    self.ready[page] = len(self.actions)
                self.touched.update(dict.fromkeys(
                    (self.where[page] for page in item.pages), len(self.actions)))
                self.waiting.subtract(now)
                self.change(now)
                self.dead |= {page for page in now & self.trace.scratch if not self.waiting[page]}
                self.drop(item.drops)
            if self.held[DISK] and len(self.free[HOST]) < (reserve := self._reserve()):
                self.make_room(HOST, reserve, keep)
        if self.home is not None:
            self.go_home(self.home)
        return Plan(tuple(self.actions), tuple(need), tuple(self.where), self.ahead)

    def leave_unchanged(self, job: Job, keep: Sequence[set[int]]) -> None:
        """Have pages leave that the host still has and that would be copied behind the job."""
        here = [page for page in job.pages if self.where[page][0] == DEVICE]
        if len(here) == len(job.pages):  # the device updates them
            return
        for page in here:
            if page in self.free[HOST] and self.next_use(page, DEVICE) >= self.horizon.end:
                self.move(page, HOST, keep)

    def _needs(self, event: int, pages: Iterable[int]) -> Iterator[int]:
        """Give how many actions must be over for each thing that an event waits for."""
        yield from (self.ready[page] for page in pages)
        yield from (actions for before, actions in self.due if before <= event)
        self.due = [job for job in self.due if job[0] > event]

    def go_home(self, home: Placement) -> None:
        """End with each page in the tier where it began.

        A page may have to leave its home to make room for another, where the host is full: then
        all are gone through again.
        """
        for _ in home:
            for page, (tier, _) in enumerate(home):
                self.bring([page], tier, [{page}, self._at_home(home)])
            for page, (tier, _) in enumerate(home):
                while self.where[page][0] < tier:
                    below = NOWHERE if tier == NOWHERE else self.where[page][0] + 1
                    self.move(page, below, [{page}, self._at_home(home)])
            if len(self._at_home(home)) == len(home):
                return

    def _at_home(self, home: Placement) -> set[int]:
        return {page for page, (own, _) in enumerate(home) if self.where[page][0] == own}

    def _reserve(self) -> int:
        return min(RESERVE, self.capacities.host // 8)


def _merged(trace: Trace, ahead: int) -> list[Event | Job]:
    """Put jobs between events: behind the loads of the events that follow, which are urgent."""
    order: list[Event | Job] = []
    jobs = sorted(trace.jobs, key=lambda job: job.after)
    waits = list(accumulate((job.before for job in reversed(jobs)), min))[::-1]
    done = 0
    for number, event in enumerate(trace.events):
        while done < len(jobs) and waits[done] <= number:
            order.append(jobs[done])
            done += 1
        order.append(event)
        while done < len(jobs) and jobs[done].after + ahead <= number:
            order.append(jobs[done])
            done += 1
    return [*order, *jobs[done:]]


def estimate(plan: Plan, trace: Trace, rates: Rates) -> float:
    """Give the duration of a step."""
    event_end: list[float] = []
    over, disk = [0.0], 0.0  # `over[n]`: when n actions are over
    ready: dict[Place, float] = {}

    def act(action: Move | Job) -> None:
        nonlocal disk
        begin = max(over[-1], event_end[action.after] if action.after >= 0 else 0.0)
        if isinstance(action, Job):
            over.append(begin + action.seconds)
            return
        begin = max(begin, ready.get(action.source, 0.0), ready.get(action.target, 0.0))
        if action.by_disk:
            disk = max(disk, over[action.start], ready.get(action.source, 0.0)) + 1 / rates.disk
            ready[action.source] = ready[action.target] = disk
            over.append(over[-1])
        else:
            rate = rates.network if action.gathers else rates.copy
            over.append(begin + 1 / rate if action.copies else begin)

    done = 0
    for event, need in zip(trace.events, plan.need, strict=True):
        for action in plan.actions[done:need]:
            act(action)
        done = need
        event_end.append(max(event_end[-1] if event_end else 0.0, over[need]) + event.seconds)
    for action in plan.actions[done:]:
        act(action)
    return max([over[-1], disk, *event_end[-1:]])


def plan_ahead(trace: Trace, capacities: Capacities, placement: Placement, ahead: int, *,
               returns: bool = False) -> Plan:
    """Plan with one distance. Raises CapacityError."""
    home = placement if returns else None
    return _Planner(trace, capacities, placement, ahead, home).run()


def plan(trace: Trace, capacities: Capacities, placement: Placement,
         rates: Rates | None = None, *, returns: bool = False,
         agree: Callable[[list[float]], list[float]] = list) -> Plan:
    """Plan a step that begins with pages at these places. Raises CapacityError.

    If it ``returns``, pages end in the tiers where they began, so that it serves the next step.
    Ranks ``agree`` on the estimates, so that all take the same plan.
    """
    rates = rates or Rates()
    plans = [plan_ahead(trace, capacities, placement, ahead, returns=returns) for ahead in AHEAD]
    if not plans[0].actions:
        return plans[0]
    took = agree([estimate(made, trace, rates) for made in plans])
    return plans[min(range(len(plans)), key=took.__getitem__)]


def relabel(made: Plan, begin: Placement, other: Placement) -> Plan:
    """Give a plan that began with pages at ``begin`` for a step that begins at ``other``.

    Every page must be in the same tier in both: slots alone have other numbers.
    """
    slots: dict[Place, Place] = dict(zip(begin, other, strict=True))
    slots |= {(NOWHERE, page): (NOWHERE, page) for page in range(len(begin))}
    targets = set(other)
    places = [place for action in made.actions if isinstance(action, Move)
              for place in (action.source, action.target)]
    for tier in range(3):
        numbers = {slot for where, slot in (*places, *begin, *other) if where == tier}
        free = iter(sorted(numbers - {slot for where, slot in targets if where == tier}))
        for slot in sorted(numbers):
            if (tier, slot) not in slots:
                slots[tier, slot] = (tier, next(free))
    actions = tuple(replace(action, source=slots[action.source], target=slots[action.target])
                    if isinstance(action, Move) else action for action in made.actions)
    return replace(made, actions=actions, end=tuple(slots[place] for place in made.end))


def first_placement(pages: int, capacities: Capacities, absent: int = 0,
                    later: int = 0) -> Placement:
    """Fill the tiers with pages in order, from the top; some slots of the host stay free.

    The first pages may be ``absent``; ``later`` of these come later and have room kept for them.
    Raises CapacityError.
    """
    nowhere = tuple((NOWHERE, page) for page in range(absent))
    kept = pages - absent + later
    if pages <= capacities.device:
        return (*nowhere, *((DEVICE, slot) for slot in range(pages - absent)))
    spare = 2 if capacities.disk else 1
    if capacities.disk and kept > capacities.device + capacities.host - spare:
        spare = max(spare, min(RESERVE, capacities.host // 8))
    slots = [(tier, slot) for tier, most in (
        (DEVICE, capacities.device), (HOST, capacities.host - spare), (DISK, capacities.disk - 1))
        for slot in range(most)]
    if capacities.host < 2 * spare:
        raise CapacityError(f"the host has room for {capacities.host} pages; {2 * spare} or more "
                            f"are possible where the device has no room for all {kept}")
    if len(slots) < kept:
        raise CapacityError(
            f"{kept} pages do not fit into {capacities.device} of the device, {capacities.host} of"
            f" the host ({spare} of them stay free to move others) and {capacities.disk} on disk")
    return (*nowhere, *slots[:pages - absent])
