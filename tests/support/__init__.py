"""Helpers that tests of several folders share."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository's folder."""
PATIENCE_S = 600
"""Nothing takes so long, however busy the machine is: a bound against what hangs."""
