"""LightCC under torchft's Manager, as scripts import it: `harp.lightcc.torch.torchft_group`."""

from harp.lightcc.torch.torchft_group import ProcessGroupLightCC

__all__ = ["ProcessGroupLightCC"]
