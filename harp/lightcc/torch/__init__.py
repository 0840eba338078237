"""LightCC under torch.distributed: importing this package registers the backend ``lightcc``."""

from harp.lightcc.store import PatientStore
from harp.lightcc.torch.backend import BACKEND, LightGroup

__all__ = ["BACKEND", "LightGroup", "PatientStore"]
