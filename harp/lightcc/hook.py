"""DDP's communication hook, as scripts import it: `harp.lightcc.torch.gradient_hook`."""

from harp.lightcc.torch.gradient_hook import GradientState, Sparsity, average_gradients

__all__ = ["GradientState", "Sparsity", "average_gradients"]
