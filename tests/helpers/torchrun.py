"""`torchrun`, whose processes are forked from it with PyTorch and palm loaded.

`python torchrun.py WORDS`, where WORDS are those of `torchrun`.
"""

from __future__ import annotations

import gc
import sys

from torch.distributed.run import main

from helpers import ranks  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    forked = ["--run-path", "--start-method=fork"] if sys.platform.startswith("linux") else []
    main([*forked, *sys.argv[1:]])
