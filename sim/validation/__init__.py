"""Published measurements as cases, and what the simulator says to each of them."""
