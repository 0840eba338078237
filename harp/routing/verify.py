"""Verification of planned paths by the routers that answer, for ``harp probe --plan``.

A plan names switches; routers answer with addresses, and one router may have many. The mapping need
not be known, because one address cannot belong to two switches. If one router answers two flows
that pass different switches by the plan, or a flow passes more routers than planned, the fabric or
its hash differs from the planned one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harp.routing.deployment import Flow


def find_mismatch(flows: Iterable[Flow],
               routers: Mapping[tuple[str, str], Sequence[str | None]]) -> str | None:
    """Give one sentence about the first contradiction to the plan, or None.

    ``routers`` has the routers that answered, by source and target of a flow and hop by hop; None
    for one that did not answer.
    """
    known: dict[str, tuple[str, str]] = {}
    for flow in flows:
        found = routers.get((flow.source, flow.target), ())
        switches = [link.partition("->")[2].partition("#")[0] for link in flow.links[:-1]]
        if len(found) > len(switches):
            return (f"from {flow.source} to {flow.target} there are at least {len(found)} routers,"
                    f" but the plan has {len(switches)}")
        for router, switch in zip(found, switches, strict=False):
            if router is None:
                continue
            other, source = known.setdefault(router, (switch, flow.source))
            if other != switch:
                return (f"{router} answers packets from {source}, where the plan has {other}, and "
                        f"packets from {flow.source}, where it has {switch}")
    return None
