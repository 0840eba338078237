"""A map of ways through a network whose hash nobody tells: what ``harp probe`` learns and writes.

It says, for a source, a target address and a target port, which routers a UDP flow passes by each
of some source ports.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from harp.routing.plan import PlanError

FORMAT = "harp-map-1"


@dataclass(frozen=True)
class Way:
    """A way from a source to a target, and the source ports that take it.

    ``routers`` has the address of each, None for one that is silent.
    """

    source: str
    target: str
    """Address and UDP port."""
    routers: tuple[str | None, ...]
    ports: tuple[int, ...]


def to_json(ways: list[Way]) -> str:
    """Write a map, a line for each way."""
    rows = [json.dumps({"source": way.source, "target": way.target, "routers": way.routers,
                        "ports": way.ports}) for way in ways]
    return f'{{"format": "{FORMAT}", "ways": [\n  ' + ",\n  ".join(rows) + "]}\n"


def from_json(text: str) -> list[Way]:
    """Read what `to_json` wrote; raises PlanError, one sentence, for anything else."""
    try:
        data: Any = json.loads(text)
        if data["format"] != FORMAT:
            raise PlanError(f"its format is {data['format']!r} and this HARP reads {FORMAT!r}: "
                            "make it anew with harp probe")
        return [Way(str(way["source"]), str(way["target"]),
                    tuple(None if router is None else str(router) for router in way["routers"]),
                    tuple(int(port) for port in way["ports"])) for way in data["ways"]]
    except PlanError:
        raise
    except KeyError as error:
        raise PlanError(f"{error.args[0]!r} is missing") from error
    except (TypeError, ValueError) as error:
        raise PlanError(f"it is no map: {error}") from error
