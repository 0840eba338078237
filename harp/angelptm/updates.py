"""Adam's updates of chunks, by the gradients of a step: in it, or late in those that follow."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harp.angelptm.adam import Adam, update
from harp.angelptm.pages import WIDE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from harp.angelptm.cache import Cache
    from harp.angelptm.late import Waiting
    from harp.angelptm.reduction import Reduction


@dataclass
class Gradients:
    """Gradients of a step, and what their updates need."""

    arrived: set[int] = field(default_factory=set)
    """Parameters that have one."""
    updated: set[tuple[int, int]] = field(default_factory=set)
    """Parts of these that have been updated: parameter and chunk."""
    how: list[Adam] = field(default_factory=list)
    """By group."""
    group_of: dict[int, int] = field(default_factory=dict)
    scale: float = 1.0
    skip: bool = False


class Updates:
    """The gradients of a step, and how each is applied. `update` is any thread's."""

    def __init__(self, cache: Cache, precision: str, late: Waiting | None,
                 reduction: Reduction | None) -> None:
        self._cache, self._layout, self._precision = cache, cache.layout, precision
        self._late, self._reduction = late, reduction
        self.new = self._old = Gradients()
        """Of this step, and of the last one, which has the settings of late updates."""
        self.counts = [0] * len(self._layout.sizes)
        """Updates of each parameter: torch corrects the bias of each by its own."""
        self._parameters: dict[int, list[int]] = defaultdict(list)
        """Of each chunk."""
        for number in range(len(self._layout.sizes)):
            for chunk in self._layout.chunks_of(number):
                self._parameters[chunk].append(number)

    def begin(self, groups: Iterable[Mapping[str, Any]], number_of: Mapping[int, int]) -> None:
        """Begin a step with the settings of these groups of parameters, which have numbers."""
        self.new.how = [Adam(group["lr"], group["betas"], group["eps"], group["weight_decay"],
                             group["decoupled"]) for group in groups]
        self.new.group_of = {number_of[id(one)]: number for number, group in enumerate(groups)
                             for one in group["params"] if id(one) in number_of}

    def chunks(self) -> list[int]:
        """Give the chunks of parameters that have a gradient."""
        return sorted({chunk for number in self.new.arrived
                       for chunk in self._layout.chunks_of(number)})

    def keep(self) -> None:
        """Leave this step's settings to late updates."""
        self._old = self.new

    def began(self, number: int) -> bool:
        """Whether an update has used this step's gradient of a parameter."""
        return number in self.new.arrived and any(
            (number, chunk) in self.new.updated for chunk in self._layout.chunks_of(number))

    def missed(self, chunks: Iterable[int]) -> Iterator[int]:
        """Give those with a parameter that is new in this step: a planned job came too early."""
        for chunk in chunks:
            if any(number in self.new.arrived and (number, chunk) not in self.new.updated
                   for number in self._parameters[chunk]):
                yield chunk

    def count(self) -> None:
        """Count this step's updates."""
        for number in self.new.arrived:
            self.counts[number] += 1

    def end(self) -> None:
        """End the step."""
        self.new = Gradients()

    def update(self, chunk: int) -> None:
        """Update the parameters of a chunk that have a gradient."""
        runs = list(self._late_runs(self._late, chunk) if self._late else self._runs(chunk))
        if not runs:
            return
        layout, first = self._layout, chunk * self._layout.chunk
        pages = layout.pages_to_update(chunk)
        in_page = (first * layout.element_bytes) % layout.page_bytes
        width = layout.element_bytes
        with self._cache.opened(pages, (pages[0], *pages[2:]), anywhere=True) as memory:
            for begin, end, how in runs:
                shown, gradients = (_from_byte(page, in_page + width * (begin - first))
                                    for page in memory[:2])
                states = [_from_byte(page, WIDE * (begin - first)) for page in memory[2:]]
                update([shown, *states, gradients] if width == WIDE else
                       [*states, gradients, shown], end - begin, self._precision, how)

    def _runs(self, chunk: int) -> Iterator[tuple[int, int, Any]]:
        """Give the ranges of a chunk that have gradients, with Adam's constants of each."""
        new = self.new
        for number in () if new.skip else self._parameters[chunk]:
            if number in new.arrived and (number, chunk) not in new.updated:
                new.updated.add((number, chunk))
                how = new.how[new.group_of[number]].at(self.counts[number] + 1, new.scale)
                yield from self._ranges(number, chunk, how)

    def _late_runs(self, late: Waiting, chunk: int) -> Iterator[tuple[int, int, Any]]:
        """Give the ranges whose gradients wait.

        Each takes a step of Adam for every gradient in the sum, by the mean of them.
        """
        old = self._old
        for number, gradients in late.take(chunk).items():
            how, last = old.how[old.group_of[number]], self.counts[number]
            for step in range(last - gradients + 1, last + 1):
                yield from self._ranges(number, chunk, how.at(step, old.scale / gradients))
        if self._reduction:
            self._reduction.updated(chunk)

    def _ranges(self, number: int, chunk: int, how: Any) -> Iterator[tuple[int, int, Any]]:
        for begin, end, where, _ in self._layout.ranges(number):
            if where == chunk:
                yield begin, end, how


def _from_byte(page: Any, at: int) -> Any:
    """Give what begins at a byte of a page, which is an address or a tensor of bytes."""
    return page + at if isinstance(page, int) else page[at:]
