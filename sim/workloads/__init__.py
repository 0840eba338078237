"""Workloads: models as lists of layers, and the fusion of their gradients into buckets."""
