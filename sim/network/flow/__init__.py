"""Fidelity `flow`: shares of rates, max-min fair, as a fluid."""
