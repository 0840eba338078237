"""The start of a compilation: once eager calls took as long as a compilation takes at least.

This is the break-even rule of ski rental (Karlin and others, "Competitive snoopy caching", 1988): a
short training compiles nothing, and one that ends soon after has lost one compilation. Compilation
in the background is not free: it takes turns with the calls, since Python runs one thread at a
time.
"""

from __future__ import annotations

LEAST_S = 1.0
OF_A_STEPS_PARAMETER_S, OF_A_MODULES_PARAMETER_S = 0.1, 0.03
"""Measured with torch 2.13's inductor on a server's core, by CPU time. SGD and Adam over 1 to 64
matrices took 1.0 to 1.7 s for one and 0.1 to 0.45 s for each. Modules of 2 to 48 parameters (linear
layers, convolutions, encoders) took 1.3 to 12 s for a forward pass, at least 1 s and 0.03 s a
parameter, and 1.5 to 4 times as long with the backward pass. That takes two thirds of a training's
eager time, too, so forward passes alone are counted, and held against their own compilation."""
