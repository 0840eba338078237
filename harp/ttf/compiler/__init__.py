"""Compilation without needless recompiles, around torch.compile."""
