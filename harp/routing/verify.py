"""Whether flows go as planned, by who answers along the way: what ``harp probe --plan`` compares.

A plan names switches, and routers answer with addresses, of which a router may have many. Nobody
has to tell which is whose: one address cannot be two switches. Where two flows that the plan has
pass different switches are answered by one router, or a flow passes more of them than it should,
the fabric or its hash is not the one that was planned for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harp.routing.deployment import Flow


def find_mismatch(flows: Iterable[Flow],
               routers: Mapping[tuple[str, str], Sequence[str | None]]) -> str | None:
    """Say in one sentence what cannot be as planned; None: nothing.

    ``routers`` are those that answered by source and target of a flow, hop by hop and as far as
    anybody asked; None for a silent one.
    """
    known: dict[str, tuple[str, str]] = {}
    for flow in flows:
        found = routers.get((flow.source, flow.target), ())
        switches = [link.partition("->")[2].partition("#")[0] for link in flow.links[:-1]]
        if len(found) > len(switches):
            return (f"from {flow.source} to {flow.target} at least {len(found)} routers are passed,"
                    f" and the plan has {len(switches)}")
        for router, switch in zip(found, switches, strict=False):
            if router is None:
                continue
            other, source = known.setdefault(router, (switch, flow.source))
            if other != switch:
                return (f"{router} answers what leaves from {source}, where the plan has {other}, "
                        f"and what leaves from {flow.source}, where it has {switch}")
    return None
