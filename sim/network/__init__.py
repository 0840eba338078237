"""What collectives run on: paths of messages, and the fidelities that move their bytes."""
