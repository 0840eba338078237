"""What `torch`, `outer` and `horovod.torch` share of torch: importing it registers nothing.

Importing `harp.lightcc.torch` registers a backend and sets the variables of torch.distributed, which
Horovod's API must not do, so this room stands beside it.
"""
