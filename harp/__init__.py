"""HARP: plans, routes and the user-space stack."""
