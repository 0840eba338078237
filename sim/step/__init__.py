"""A training step: its graph of work and collectives, its execution, and the parts of its time."""
