"""Execution traces of others: read, written and replayed on a simulated cluster."""
