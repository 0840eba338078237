"""Speed of the stack against kernel TCP, raw sockets, memory and the line."""
