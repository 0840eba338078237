"""Completion by fish, with whole descriptions.

click's script for fish splits an answer at each comma, so a description ends at its first one.
"""

from __future__ import annotations

from click.shell_completion import FishComplete, add_completion_class


class SplitOnce(FishComplete):
    """click's completion with a script that splits an answer at its first comma alone."""

    source_template = FishComplete.source_template.replace(
        'string split "," $completion', 'string split --max 1 "," $completion')


def register() -> None:
    """Let click use it."""
    add_completion_class(SplitOnce)
