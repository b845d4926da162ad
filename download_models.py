"""Download pretrained models into the folder `pretrain` of the current folder."""

from __future__ import annotations

import argparse
import sys

from palm import downloader
from palm.errors import PalmError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("-l", "--list", action="store_true", help="list the models")
    action.add_argument("-d", "--download", metavar="NAME", help="download a model, or all of them (all)")
    options = parser.parse_args()
    try:
        if options.list:
            downloader.ls("pretrain")
        else:
            downloader.download("pretrain", options.download)
    except PalmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run the same again, and it goes on from there", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
