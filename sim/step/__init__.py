"""A training step: its graph of work and collectives, who runs it, and where its time goes."""
