"""Fidelity `packet`: every frame through every queue, between the sessions that hosts run."""
