"""Pictures of 28 x 28 in ten classes: a pattern for each class, shifted and noisy."""

import torch
from torch.utils.data import TensorDataset


def digits(count, seed):
    """Return a data set of ``count`` pictures; the classes are the same for every seed."""
    patterns = torch.nn.functional.interpolate(
        torch.rand(10, 1, 7, 7, generator=torch.Generator().manual_seed(0)), scale_factor=4)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    shifts = torch.randint(-2, 3, (count, 2), generator=generator).tolist()
    pictures = torch.stack([torch.roll(patterns[label], tuple(shift), (1, 2))
                            for label, shift in zip(labels, shifts, strict=True)])
    pictures += 0.3 * torch.randn(pictures.shape, generator=generator)
    return TensorDataset(pictures, labels)
