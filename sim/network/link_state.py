"""Current state of a fabric's links, and the state that routing knows.

A link that is down delivers nothing, but dynamic bonds continue to use it until routing avoids it.
A slow link is known to be slow at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class LinkState:
    """The links of one fabric."""

    def __init__(self, whole: Fabric) -> None:
        self.whole = whole
        self.fabric = whole
        """The fabric that routing uses at present."""
        self.lasting = whole
        """Without the links that are down for good."""
        self.share = np.ones(len(whole.link_src))
        """Share of its rate that each link delivers."""
        self.known = self.share
        """The share that bonds assume."""
        self.avoided = np.empty(0, np.int64)
        self.key = b""
        """Identifies the state, for caches of routes."""
        self._fabrics: dict[bytes, Fabric] = {self.avoided.tobytes(): whole}

    def scale(self, share: Floats) -> bool:
        """Let links deliver these shares of their rates; whether bonds notice a change."""
        known = np.where(share > 0, share, self.known)
        changed = not np.array_equal(known, self.known)
        self.share, self.known = share, known
        self._name_state()
        return changed

    def avoid(self, links: Ints) -> None:
        """Route around these links, and over all others."""
        self.avoided = np.unique(links)
        key = self.avoided.tobytes()
        # Routing tables take time to make, and links flap.
        if key not in self._fabrics:
            self._fabrics[key] = self.whole.without(self.avoided)
        self.fabric = self._fabrics[key]
        self._name_state()

    def abandon(self, links: Ints) -> None:
        """Take note that these links will never be back."""
        self.lasting = self.lasting.without(links)

    def _name_state(self) -> None:
        slow = np.flatnonzero(self.known < 1.0)
        parts = (self.avoided, slow, self.known[slow])
        self.key = b"/".join(part.tobytes() for part in parts) if any(map(len, parts)) else b""
