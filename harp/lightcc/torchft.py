"""LightCC under torchft's Manager, as scripts import it: `harp.lightcc.torch.torchft`."""

from harp.lightcc.torch.torchft import ProcessGroupLightCC

__all__ = ["ProcessGroupLightCC"]
