"""Faults and healthy jobs for `harp diagnose`."""
