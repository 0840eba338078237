"""Fidelity `lab`: real kernels, links and stacks, at a scale, by the wall clock (root only)."""
