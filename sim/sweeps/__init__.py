"""Sweeps: many points of one topology file, kept as they are done."""
