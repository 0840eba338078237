"""Two ports and faults: HARP and kernel TCP at all fidelities."""
