"""TTF on torch: what trains search, ads and recommendation incrementally."""
