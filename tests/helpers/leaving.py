"""A program that starts itself as two processes and ends right after an exchange.

It gives threads of the engine no turn by itself.
"""

from __future__ import annotations

import atexit
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from palm.core.group import all_reduce_sum, join, launch
from palm.core.logging import show_on_console

if __name__ == "__main__":
    show_on_console()
    cpu = torch.device("cpu")
    launch(cpu, 2)
    # What is registered first is called last: after palm has left the group.
    atexit.register(lambda: sys.stdout.write("" if dist.is_initialized() else "left the group\n"))
    join(cpu)
    sys.setswitchinterval(60)
    kept = DistributedDataParallel(torch.nn.Linear(2, 2))
    kept(torch.ones(1, 2)).sum().backward()
    for _ in range(10):
        all_reduce_sum(torch.zeros(1000))
