"""torch's tensors, accelerators and stores: shared by `torch`, `outer` and `horovod.torch`.

Importing this room registers nothing. Importing `harp.lightcc.torch` registers a backend and sets
the variables of torch.distributed, which Horovod's API must not do.
"""
