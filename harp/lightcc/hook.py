"""DDP's communication hook, as scripts import it: `harp.lightcc.torch.hook`."""

from harp.lightcc.torch.hook import GradientState, Sparsity, average_gradients

__all__ = ["GradientState", "Sparsity", "average_gradients"]
