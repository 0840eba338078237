"""LightCC: collectives on host memory that average gradients, their groups and settings.

    group.py           a group of ranks and its collectives; failure.py ends it, call_queue.py
                       keeps its calls in order, peers.py has its connections, p2p.py its messages
    settings.py        the LIGHT_* variables; policy.py chooses the plan of a call by them
    program.py         a plan on given memory: pieces.py cuts it, mover.py has C move the pieces
    few_bits.py        all-reduce in 8, 4 or 2 bits; few_bits_ring.py the same around a ring
    torch/             the backend ``lightcc`` of torch.distributed, DDP's hook and torchft's group;
                       scripts import these two as ``harp.lightcc.hook`` and ``.torchft``
    torch_base/        torch's tensors, accelerators and stores: Horovod's API shares them with
                       torch/, and must not register the backend, as importing torch/ does
    horovod/           Horovod's API
    outer/             training that synchronises rarely

Top-k: `harp.collectives.topk` is the plan, ``cnet/lightcc/topk.c`` selects and adds up.
"""
