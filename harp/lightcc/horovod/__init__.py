"""Horovod's API over LightCC's collectives: ``import harp.lightcc.horovod.torch as hvd``.

`negotiation` decides what is averaged when, `runtime` carries it out in a thread of its own,
`world` holds what ``init`` made; `torch` is what a training script sees. None but the last knows
torch.
"""
