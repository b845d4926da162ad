"""Download pretrained models to `./pretrain`, like `palm download`."""

from __future__ import annotations

import sys

from palm.cli import main as palm


def main() -> int:
    return palm(["download", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
