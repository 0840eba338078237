"""The network as packets, whose ends are the sessions that hosts run."""
