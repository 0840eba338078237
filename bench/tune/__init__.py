"""Settings that `sim.tune` chooses, beside a full grid in the laboratory."""
