"""Shipped parameter sets of host stacks: costs per byte, packet and message, each with its source.

`sim.schema.parameters` reads them, `sim.network.transport` charges them to messages, and `table`
writes the page that lists them.
"""
