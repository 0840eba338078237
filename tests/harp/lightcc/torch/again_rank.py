"""One rank of test_restart.py, under torchrun's variables: it joins its job, leaves it, and joins
it again, by torch's API and by Horovod's. With the word "killed" rank 1 ends amid the first time.
"""

import json
import os
import signal
import sys

import torch
import torch.distributed as dist

import harp.lightcc.horovod.torch as hvd
import harp.lightcc.torch  # noqa: F401  (registers the backend)

found = []
for _ in range(2):
    dist.init_process_group("lightcc")
    pair, data = dist.new_group([0, 1]), torch.ones(3)
    dist.all_reduce(data)
    if "killed" in sys.argv and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(data, group=pair)
    found.append(data.tolist())
    dist.destroy_process_group()
for _ in range(2):
    hvd.init()
    found.append(hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist())
    hvd.shutdown()
print(json.dumps(found))
