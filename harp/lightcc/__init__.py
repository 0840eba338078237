"""LightCC: the settings and rules of the collectives that average gradients, and their groups."""
