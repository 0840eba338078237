"""A model as the search for cuts sees it: its operators, in order, with times and sizes.

Operator i makes value i. The first operators are the model's inputs. A value is live from its
operator to its last reader; where a cut lies between, the value crosses it. So a value that skips
a stage crosses both cuts of that stage, which relays it.

    boundary b    the gap before operator b; a cut into stages is a list of such gaps
    range i, j    operators i … j-1, a stage
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Operator:
    """A node of the graph, and the value that it makes."""

    name: str
    reads: tuple[int, ...] = ()
    """Operators whose values it reads."""
    value_bytes: int = 0
    differentiable: bool = True
    """Whether a gradient of its value comes back."""
    forward_s: float = 0.0
    backward_s: float = 0.0
    parameters: tuple[int, ...] = ()
    """Numbers of parameters that it reads; tied ones have one number."""
    saved: tuple[int, ...] = ()
    """Numbers of memory blocks that it keeps for the backward pass; some it shares with others."""
    layer: str = ""


@dataclass(frozen=True)
class Graph:
    """Operators in an order in which they can run."""

    operators: tuple[Operator, ...]
    inputs: int
    """Operators at the front that are the model's inputs."""
    outputs: tuple[int, ...]
    """Values that the last stage must have."""
    parameter_bytes: tuple[int, ...] = ()
    saved_bytes: tuple[int, ...] = ()
    closed: frozenset[int] = frozenset()
    """Boundaries where no cut may be."""

    @cached_property
    def boundaries(self) -> list[int]:
        """Gaps where a cut may be."""
        return [gap for gap in range(self.inputs + 1, len(self.operators))
                if gap not in self.closed]

    @cached_property
    def layer_boundaries(self) -> list[int]:
        """Gaps between layers alone."""
        return [gap for gap in self.boundaries
                if self.operators[gap].layer != self.operators[gap - 1].layer]

    @cached_property
    def last_reader(self) -> list[int]:
        """For each value, the last operator that reads it; of outputs, the end."""
        last = list(range(len(self.operators)))
        for number, operator in enumerate(self.operators):
            for value in operator.reads:
                last[value] = number
        for value in self.outputs:
            last[value] = len(self.operators)
        return last

    def crossing(self, gap: int) -> list[int]:
        """Values that cross a boundary, in order."""
        return [value for value in range(gap) if self.last_reader[value] >= gap]

    @cached_property
    def crossing_bytes(self) -> Floats:
        """Bytes of values over each boundary, from 0 to the end, where nothing crosses."""
        return self._over([operator.value_bytes for operator in self.operators])

    @cached_property
    def gradient_bytes(self) -> Floats:
        """Bytes of gradients that come back over each boundary."""
        return self._over([operator.value_bytes * operator.differentiable
                           for operator in self.operators])

    def _over(self, sizes: list[int]) -> Floats:
        steps = np.zeros(len(sizes) + 2)
        for value, (size, last) in enumerate(zip(sizes, self.last_reader, strict=True)):
            steps[value + 1] += size
            steps[last + 1] -= size
        over = np.cumsum(steps)[:-1]
        over[-1] = 0.0
        return over

    @cached_property
    def seconds(self) -> Floats:
        """Computing time of a microbatch up to each boundary, both passes."""
        times = [operator.forward_s + operator.backward_s for operator in self.operators]
        return np.concatenate([[0.0], np.cumsum(times)])

    @cached_property
    def parameter_readers(self) -> Floats:
        """Operators up to each boundary that read a parameter."""
        reads = [bool(operator.parameters) for operator in self.operators]
        return np.cumsum([0.0, *reads])

    def parameters_from(self, start: int) -> Floats:
        """Bytes of parameters in the ranges that begin at a boundary, by their ends."""
        return self._distinct(start, [operator.parameters for operator in self.operators],
                              self.parameter_bytes)

    def saved_from(self, start: int) -> Floats:
        """Bytes kept for the backward pass in the ranges that begin at a boundary, by ends."""
        return self._distinct(start, [operator.saved for operator in self.operators],
                              self.saved_bytes)

    @staticmethod
    def _distinct(start: int, used: list[tuple[int, ...]], sizes: tuple[int, ...]) -> Floats:
        seen: set[int] = set()
        sums = np.zeros(len(used) + 1)
        for number in range(start, len(used)):
            fresh = set(used[number]) - seen
            seen |= fresh
            sums[number + 1] = sums[number] + sum(sizes[block] for block in fresh)
        return sums
