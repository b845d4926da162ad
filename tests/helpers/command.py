"""`palm` as a program for `torchrun.py`, which wants programs that return: `command.py WORDS`."""

from __future__ import annotations

import sys

from palm.cli import main

if __name__ == "__main__" and (status := main()):
    sys.exit(status)
