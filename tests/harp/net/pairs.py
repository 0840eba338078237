"""Engines and connections between them, for the tests of this folder."""

import contextlib

import numpy as np

import harp.net.engine

PORTS = {"udp": {"address": "127.0.0.1"}, "tcp": {"address": "127.0.0.1"}, "mem": {}}
PATIENCE_S = 30


def engine(port="mem", **options):
    return harp.Engine(port, **PORTS[port], **options)


@contextlib.contextmanager
def pair(port="mem", engine_options=None, *, near=None, far=None):
    """Two engines and a connection between them: (the connecting end, the listening end)."""
    options = engine_options or {}
    with engine(port, **options) as a, engine(port, **options) as b:
        with b.listen(**far or {}) as listener:
            one = a.connect(listener.handle, timeout=PATIENCE_S, **near or {})
            other = listener.accept(PATIENCE_S)
        yield one, other


def pattern(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)
