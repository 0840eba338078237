"""One face for inference: the fastest engine here whose answers are right."""

from harp.ttf.infer.optimized import Optimized, load, optimize

__all__ = ["Optimized", "load", "optimize"]
