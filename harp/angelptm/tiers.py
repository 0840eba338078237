"""Number of pages of each tier, by the caps of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harp.angelptm.page_plan import RESERVE, Capacities

if TYPE_CHECKING:
    from harp.angelptm.config import Config
    from harp.angelptm.pages import Layout


def stays(layout: Layout, stage: int, accumulation: int) -> int:
    """Give how many pages of the window stay while others are used, beside the own ones."""
    if layout.ranks == 1 or stage == 3:
        return 0
    return layout.shown * (2 if stage < 2 and accumulation > 1 else 1)


def capacities(layout: Layout, config: Config, later: int = 0) -> Capacities:
    """Give the pages that each tier holds; without a cap a tier holds all that is left."""
    def pages(limit: int | None, left: int) -> int:
        return left if limit is None else limit // layout.page_bytes

    device = pages(config.device_bytes, layout.pages)
    left = max(layout.pages - device, 0)
    if layout.ranks > 1 and left:
        left = layout.pages - layout.apart + later  # the window's pages may fill the device
    host = pages(config.host_bytes, left + 2 * RESERVE if left else 0)
    if config.disk_path is None:
        return Capacities(device, host)
    disk = pages(config.disk_bytes or None, layout.pages + RESERVE)
    return Capacities(device, host, disk if left > max(host - 2, 0) else 0)
