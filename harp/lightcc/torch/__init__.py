"""LightCC under torch.distributed: importing this package registers the backend ``lightcc``."""

from harp.lightcc.torch.backend import BACKEND, LightGroup
from harp.lightcc.torch_base.torch_store import PatientStore

__all__ = ["BACKEND", "LightGroup", "PatientStore"]
