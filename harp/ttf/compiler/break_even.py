"""When a compilation begins: once eager calls took as long as a compilation takes at least.

This is the break-even rule of ski rental (Karlin and others, "Competitive snoopy caching", 1988): a
short training compiles nothing, and one that ends soon after has lost one compilation. Compilation
aside is no gift: it takes turns with the calls, since Python runs one thread at a time.
"""

from __future__ import annotations

LEAST_COMPILE_S, LEAST_COMPILE_S_OF_A_PARAMETER = 1.0, 0.1
"""Measured with torch 2.13's inductor on a server's core, by CPU time: SGD and Adam over 1 to 64
matrices took 1.0 to 1.7 s for one and 0.1 to 0.45 s for each."""
PASSES_OF_TRAINING = 3
"""Time of both passes, in forward passes: a backward pass has two products for each of a forward
pass (Kaplan and others, "Scaling laws for neural language models", 2020, 2.1)."""


class EagerTime:
    """Seconds of eager calls, which are rent.

    Args:
        parameters_n: tensors of parameters of what is compiled.
        after_s: seconds after which a compilation begins; by default what it takes at least.

    """

    def __init__(self, parameters_n: int, after_s: float | None) -> None:
        self._seconds = 0.0
        self._after_s = (LEAST_COMPILE_S + LEAST_COMPILE_S_OF_A_PARAMETER * parameters_n
                         if after_s is None else after_s)

    def add(self, seconds: float) -> None:
        """Count an eager call."""
        self._seconds += seconds

    @property
    def is_enough(self) -> bool:
        """Whether a compilation may begin."""
        return self._seconds >= self._after_s


def check_after_s(after_s: float | None) -> None:
    """Raise ValueError for seconds below zero."""
    if after_s is not None and not after_s >= 0:
        raise ValueError(f"harp.ttf.compile: after_s is {after_s}; it must be at least 0, or None "
                         "for what a compilation takes at least")
