"""Shipped parameter sets of host stacks, as YAML, and the page that lists them."""
