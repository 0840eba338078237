"""Fidelities of the network: how flows share it."""
