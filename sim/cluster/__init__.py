"""The cluster that a topology describes: its resources, and how ranks lie on it."""
