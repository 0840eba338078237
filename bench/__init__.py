"""Measurements of the stack, LightCC, routes, diagnosis and the simulator: ``python -m bench``."""
