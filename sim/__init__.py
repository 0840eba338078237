"""The simulator: one topology file in, a checked answer out."""
