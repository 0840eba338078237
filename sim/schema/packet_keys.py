"""Keys of a file that fidelity `packet` reads, and of the others at most `lab`."""

from collections.abc import Iterator
from typing import Any

from sim.schema.errors import Path

PACKET_KEYS: tuple[Path, ...] = (("background", "congestion"), ("fabric", "switch"),
                                 ("hosts", "nics", "ring"), ("scenarios", "congestion"),
                                 ("vpc", "police"))
"""Without the numbers of lists."""
LAB_TOO = "scenarios.congestion"
"""The one that the laboratory reads as well."""


def is_of_packet(path: Path) -> bool:
    """Whether what stands at ``path`` is for fidelity packet alone."""
    keys = tuple(part for part in path if not isinstance(part, int))
    return any(keys[:len(known)] == known for known in PACKET_KEYS)


def packet_keys(plain: Any) -> list[str]:
    """Those that a file has, as it names them, each once."""
    return [".".join(map(str, known)) for known in PACKET_KEYS if any(_at(plain, known))]


def _at(value: Any, path: Path) -> Iterator[bool]:
    if isinstance(value, list):
        for child in value:
            yield from _at(child, path)
    elif not path:
        yield True
    elif isinstance(value, dict) and path[0] in value:
        yield from _at(value[path[0]], path[1:])
