"""TCP of fidelity packet beside HARP and beside the kernel."""
