"""Speed of the simulator at scale."""
