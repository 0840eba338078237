"""LightCC: collectives on host memory that average gradients, their groups and settings."""
