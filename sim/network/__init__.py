"""Networks under the collectives: paths of messages, and the fidelities that move their bytes."""
