"""Mixed precision that follows the loss: half where it does no harm, full where it does."""

from harp.ttf.amp.controller import Controller, Report
from harp.ttf.amp.thresholds import Policy

__all__ = ["Controller", "Policy", "Report"]
