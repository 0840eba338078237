"""Planned routes, planned source ports and orders of ranks."""
