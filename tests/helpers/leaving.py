"""A program that ends right after an exchange, and gives threads of the engine no turn by itself.

`torchrun --nproc-per-node 2 leaving.py`
"""

from __future__ import annotations

import sys

import torch
from torch.nn.parallel import DistributedDataParallel

from palm.distributed.group import all_reduce_sum, join

if __name__ == "__main__":
    join(torch.device("cpu"))
    sys.setswitchinterval(60)
    kept = DistributedDataParallel(torch.nn.Linear(2, 2))
    kept(torch.ones(1, 2)).sum().backward()
    for _ in range(10):
        all_reduce_sum(torch.zeros(1000))
