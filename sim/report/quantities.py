"""Write a parameter's value with its unit, in more digits than anyone can measure.

A step is not quite smooth in its parameters, since fusion cuts buckets by a clock; with six digits
a file repeats what the fit found.
"""

from __future__ import annotations

DIGITS = 6
_TIME = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_LADDERS: dict[str, dict[str, float]] = {
    "effective": {"GFLOPS": 1e9, "TFLOPS": 1e12, "PFLOPS": 1e15},
    "flow_rate": {"bps": 1.0, "kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9, "Tbps": 1e12},
    "headers": {"B": 1.0},
    "cores": {"": 1.0},
    "threads": {"": 1.0},
    "memory_per_byte": {"": 1.0},
    "overlap": {"": 1.0},
    "slowdown": {"": 1.0},
    "jitter": {"": 1.0},
    "contention": {"": 1.0},
    "kernel_delay": {"": 1.0},
    "deviation": {"": 1.0},
    "utilisation": {"": 1.0},
}


def quantity(parameter: str, value: float) -> str:
    """``0.92873ns`` for ``kernel-tcp.cost_per_byte`` or ``cost_per_byte`` and a value in SI units.

    The unit is the largest that is not above the value.
    """
    ladder = _LADDERS.get(parameter.rpartition(".")[2], _TIME)
    smallest = next(iter(ladder))
    unit = max((u for u, scale in ladder.items() if scale <= value * (1 + 1e-12)),
               key=ladder.__getitem__, default=smallest)
    return f"{value / ladder[unit]:.{DIGITS}g}{unit}"
