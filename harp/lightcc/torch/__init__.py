"""LightCC under torch.distributed: importing this package registers the backend ``lightcc``."""

from harp.lightcc.torch.backend import BACKEND, LightGroup, PatientStore

__all__ = ["BACKEND", "LightGroup", "PatientStore"]
